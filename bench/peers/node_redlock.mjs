// The lock of npm's redlock on ioredis, measured as the bench measures ours.
//
// Usage: node node_redlock.mjs pairs|turns PORT[,PORT...] CLIENTS SECONDS PAUSE
// With several ports each is an independent node, and a majority of them decides.
// `pairs` prints how many, by tasks on one connection with names of their own. `turns` prints
// a line for each: client, token (here: when), asked, granted, released; each client has a
// connection of its own.
import { createRequire } from "node:module";
import { join } from "node:path";

// Where scripts/bench installs what package.json names.
const require = createRequire(join(process.env.NODE_PEERS, "package.json"));
const Redis = require("ioredis");
const redlock = require("redlock");
const Redlock = redlock.default ?? redlock;

const [what, ports, clients, seconds, pause] = process.argv.slice(2);
const TTL = 30_000;
const NAMES = 1024;
const now = () => process.hrtime.bigint();
const sleep = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));
const connect = async () => {
  const servers = ports.split(",").map((port) => new Redis(Number(port)));
  await Promise.all(servers.map((server) => server.ping()));
  return servers;
};
const locks = (servers) => {
  const manager = new Redlock(servers, {});
  manager.on("error", () => {}); // A refusal is tried again.
  return manager;
};

async function pairs() {
  const servers = await connect();
  const manager = locks(servers);
  const end = now() + BigInt(Math.round(Number(seconds) * 1e9));
  const mine = Math.max(1, Math.floor(NAMES / Number(clients)));
  let count = 0;
  const task = async (client) => {
    for (let i = 0; now() < end; i += 1) {
      const held = await manager.acquire([`redlock:${client}:${i % mine}`], TTL);
      await held.release();
      count += 1;
    }
  };
  await Promise.all([...Array(Number(clients)).keys()].map(task));
  console.log(count);
  servers.forEach((server) => server.disconnect());
}

async function turns() {
  const connections = await Promise.all([...Array(Number(clients))].map(connect));
  const end = now() + BigInt(Math.round(Number(seconds) * 1e9));
  const lines = [];
  const client = async (servers, number) => {
    const manager = locks(servers);
    for (;;) {
      const asked = now();
      let held;
      while (!held) {
        if (now() >= end) return;
        // It gives up after ten tries.
        held = await manager.acquire(["redlock:contended"], TTL).catch(() => undefined);
      }
      const granted = now();
      const released = now();
      await held.release();
      lines.push(`${number} ${granted} ${asked} ${granted} ${released}`);
      if (Number(pause) > 0) await sleep(Number(pause) * 1000);
    }
  };
  await Promise.all(connections.map(client));
  console.log(lines.join("\n"));
  connections.flat().forEach((server) => server.disconnect());
}

await (what === "pairs" ? pairs() : turns());

//! The gate beside nginx as a plain proxy, in front of the same trivial upstream (another
//! nginx that answers at once). Rounds alternate, so that a busy machine strikes both.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Parser;
use hdrhistogram::Histogram;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Compares `leasehold gate` with nginx: requests per second, and latency.
#[derive(Debug, Parser)]
struct Arguments {
    /// The `leasehold` to measure
    #[arg(long, value_name = "PATH")]
    leasehold: PathBuf,

    /// Connections, each with one request at a time
    #[arg(long, default_value_t = 32)]
    connections: usize,

    /// Seconds for each round
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,

    /// Rounds for each
    #[arg(long, default_value_t = 5)]
    rounds: usize,
}

/// The goals: at least this share of nginx's requests, at most this multiple of its median.
const SHARE: f64 = 0.5;
const MEDIAN: f64 = 1.5;

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let folder = tempfile::tempdir()?;
    let (upstream, plain, gate) = (free()?, free()?, free()?);
    let _upstream =
        Server::start(nginx(folder.path(), "upstream", &answering(upstream))?, upstream)?;
    let _plain = Server::start(nginx(folder.path(), "proxy", &passing(plain, upstream))?, plain)?;
    let mut command = Command::new(&arguments.leasehold);
    command.args(["gate", "--upstream", &format!("http://{upstream}")]);
    command.args(["--listen", &gate.to_string(), "--marks"]).arg(folder.path().join("marks.db"));
    let _gate = Server::start(command, gate)?;

    let measure = Duration::try_from_secs_f64(arguments.seconds)?;
    let load = |address| run(address, arguments.connections, measure);
    load(plain).and(load(gate)).context("warming up")?;
    let (mut nginx, mut ours) = (Vec::new(), Vec::new());
    for round in 1..=arguments.rounds {
        nginx.push(load(plain)?);
        ours.push(load(gate)?);
        println!("round {round}: nginx {}, gate {}", nginx[round - 1], ours[round - 1]);
    }
    let (nginx, ours) = (median(nginx), median(ours));
    let (share, times) = (ours.rate / nginx.rate, ours.p50.as_secs_f64() / nginx.p50.as_secs_f64());
    println!("medians: nginx {nginx}, gate {ours}");
    let met = |good| if good { "met" } else { "MISSED" };
    println!("requests: {share:.2} of nginx (goal ≥ {SHARE}: {})", met(share >= SHARE));
    println!("p50:      {times:.2} × nginx (goal ≤ {MEDIAN}: {})", met(times <= MEDIAN));
    Ok(())
}

struct Measured {
    rate: f64,
    p50: Duration,
    p99: Duration,
}

impl std::fmt::Display for Measured {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.0}/s (p50 {:?}, p99 {:?})", self.rate, self.p50, self.p99)
    }
}

/// By the rate.
fn median(mut all: Vec<Measured>) -> Measured {
    all.sort_by(|one, other| one.rate.total_cmp(&other.rate));
    let middle = all.len() / 2;
    all.swap_remove(middle)
}

fn run(address: SocketAddr, connections: usize, measure: Duration) -> Result<Measured> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let began = Instant::now();
        let tasks = (0..connections).map(|_| tokio::spawn(requests(address, began + measure)));
        let mut all = Histogram::<u64>::new(3)?;
        for task in tasks.collect::<Vec<_>>() {
            all.add(task.await??)?;
        }
        let micros = |quantile| Duration::from_micros(all.value_at_quantile(quantile));
        let rate = all.len() as f64 / began.elapsed().as_secs_f64();
        Ok(Measured { rate, p50: micros(0.5), p99: micros(0.99) })
    })
}

/// One connection: request after request.
async fn requests(address: SocketAddr, until: Instant) -> Result<Histogram<u64>> {
    let mut stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let request = format!(
        "PUT /stock HTTP/1.1\r\nhost: {address}\r\nfencing-token: stock;1763241600123456\r\n\
         content-length: 16\r\n\r\n0123456789abcdef"
    );
    let (mut took, mut buffer) = (Histogram::new(3)?, vec![0; 4096]);
    while Instant::now() < until {
        let began = Instant::now();
        stream.write_all(request.as_bytes()).await?;
        let mut filled = 0;
        loop {
            let read = stream.read(&mut buffer[filled..]).await?;
            if read == 0 {
                bail!("the connection was closed");
            }
            filled += read;
            // The upstream's answer is the only one that ends so.
            if buffer[..filled].ends_with(b"\r\n\r\nstored") {
                break;
            }
            if filled == buffer.len() {
                bail!("not the upstream's answer: {}", String::from_utf8_lossy(&buffer));
            }
        }
        if !buffer.starts_with(b"HTTP/1.1 200") {
            bail!("refused: {}", String::from_utf8_lossy(&buffer[..filled]));
        }
        took.record(began.elapsed().as_micros() as u64)?;
    }
    Ok(took)
}

/// A server process; killed when it is dropped.
struct Server(Child);

impl Server {
    fn start(mut command: Command, address: SocketAddr) -> Result<Self> {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let started = command.spawn().with_context(|| format!("cannot start {command:?}"))?;
        let mut server = Self(started);
        let until = Instant::now() + Duration::from_secs(20);
        while std::net::TcpStream::connect(address).is_err() {
            if let Some(status) = server.0.try_wait()? {
                bail!("{command:?} ended: {status}");
            }
            if Instant::now() > until {
                bail!("{command:?} does not listen on {address}");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // nginx's master ends its workers when it is asked to end, not when it is killed.
        let pid = rustix::process::Pid::from_child(&self.0);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let _ = self.0.wait();
    }
}

fn free() -> Result<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}

fn nginx(folder: &Path, name: &str, server: &str) -> Result<Command> {
    let folder = folder.join(name);
    fs::create_dir(&folder)?;
    let shown = folder.display();
    let paths: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|kind| format!("{kind}_temp_path {shown}/{kind};\n"))
        .concat();
    let config = format!(
        "daemon off; worker_processes auto; pid {shown}/pid; error_log {shown}/error.log;\n\
         events {{ worker_connections 1024; }}\n\
         http {{ access_log off; keepalive_requests 1000000000; {paths} {server} }}\n"
    );
    let file = folder.join("nginx.conf");
    fs::write(&file, config)?;
    let mut command = Command::new("nginx");
    command.arg("-c").arg(file).arg("-p").arg(&folder);
    Ok(command)
}

fn answering(here: SocketAddr) -> String {
    format!("server {{ listen {here}; location / {{ return 200 stored; }} }}")
}

/// As its documentation recommends for a proxy with connections that are kept.
fn passing(here: SocketAddr, upstream: SocketAddr) -> String {
    format!(
        "upstream service {{ server {upstream}; keepalive 64; keepalive_requests 1000000000; }}
         server {{ listen {here}; location / {{
             proxy_pass http://service; proxy_http_version 1.1; proxy_set_header Connection \"\";
         }} }}"
    )
}

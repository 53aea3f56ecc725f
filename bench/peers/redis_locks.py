"""Locks of redis-py and python-redis-lock, measured as the bench measures ours.

Usage: redis_locks.py redis-py|python-redis-lock pairs|turns PORT CLIENTS SECONDS PAUSE
`pairs` prints how many; each client is a thread with names of its own. `turns` prints a line
for each: client, token (here: when), asked, granted, released; each client is a process.
"""

import multiprocessing
import sys
import threading
import time

import redis

library, what, port, clients, seconds, pause = sys.argv[1:]
port, clients, seconds, pause = int(port), int(clients), float(seconds), float(pause)
NAMES = 1024
TTL = 30


def now():
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def maker():
    """Makes locks by name, on a connection of its own."""
    server = redis.Redis(port=port)
    server.ping()
    if library == "redis-py":
        return lambda name: server.lock(name, timeout=TTL)
    import redis_lock

    return lambda name: redis_lock.Lock(server, name, expire=TTL)


def pairs(client, counts, start):
    lock, count, mine = maker(), 0, max(1, NAMES // clients)
    start.wait()
    end = now() + seconds * 1e9
    while now() < end:
        held = lock(f"{library}:{client}:{count % mine}")
        held.acquire()
        held.release()
        count += 1
    counts[client] = count


def turns(client, start, lines):
    lock, seen = maker(), []
    start.wait()
    end = now() + seconds * 1e9
    while (asked := now()) < end:
        held = lock(f"{library}:contended")
        held.acquire()
        granted = now()
        released = now()
        held.release()
        seen.append(f"{client} {granted} {asked} {granted} {released}")
        if pause:
            time.sleep(pause)
    lines.put(seen)


def main():
    if what == "pairs":
        counts, start = [0] * clients, threading.Barrier(clients)
        running = [
            threading.Thread(target=pairs, args=(client, counts, start))
            for client in range(clients)
        ]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
        print(sum(counts))
        return
    start, lines = multiprocessing.Barrier(clients), multiprocessing.Queue()
    running = [
        multiprocessing.Process(target=turns, args=(client, start, lines))
        for client in range(clients)
    ]
    for process in running:
        process.start()
    for _ in running:
        for line in lines.get():
            print(line)
    for process in running:
        process.join()


main()

"""How often some clients of kazoo's can have one lock in some seconds, one after the other.

Usage: kazoo_turns.py HOSTS PATH SECONDS CLIENTS

Every client has a connection and a thread of its own. Prints the number of turns.
"""

import sys
import threading
import time

from kazoo.client import KazooClient


def take_turns(client, path, until, turns):
    while time.monotonic() < until:
        with client.Lock(path):
            turns.append(1)


def main(hosts, path, seconds, clients):
    connected = [KazooClient(hosts=hosts, timeout=30) for _ in range(int(clients))]
    for client in connected:
        client.start(timeout=60)
    until, turns = time.monotonic() + float(seconds), []
    threads = [
        threading.Thread(target=take_turns, args=(client, path, until, turns))
        for client in connected
    ]
    for thread in threads:
        thread.start()
    time.sleep(max(0, until - time.monotonic()))
    count = len(turns)
    for thread in threads:
        thread.join()
    print(count)


main(*sys.argv[1:])

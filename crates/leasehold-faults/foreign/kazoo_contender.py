"""Takes a lock with the real kazoo, again and again, for some seconds.

Usage: kazoo_contender.py HOSTS PATH SECONDS [NODE_NAME]

Prints, for every time that it had the lock, from when to when, in nanoseconds of the
machine's boot clock. With NODE_NAME, kazoo's algorithm works on nodes of that name.
"""

import random
import sys
import time

from kazoo.client import KazooClient
from kazoo.recipe.lock import Lock


def now():
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def main(hosts, path, seconds, node_name=None):
    class Contender(Lock):
        if node_name:
            _NODE_NAME = node_name
            _EXCLUDE_NAMES = [node_name]

    client = KazooClient(hosts=hosts, timeout=10)
    client.start(timeout=60)
    print("ready", flush=True)
    until = time.monotonic() + float(seconds)
    while time.monotonic() < until:
        lock = Contender(client, path, identifier="kazoo")
        with lock:
            since = now()
            time.sleep(random.uniform(0, 0.004))
            print(since, now(), flush=True)
        time.sleep(random.uniform(0, 0.002))
    client.stop()


main(*sys.argv[1:])

"""How many pairs of lock and unlock redlock-py does in some seconds, in one thread.

Usage: redlock_pairs.py SECONDS HOST:PORT...

Prints the number of pairs.
"""

import sys
import time

from redlock import Redlock


def main(seconds, *nodes):
    hosts = [node.rsplit(":", 1) for node in nodes]
    manager = Redlock([{"host": host, "port": int(port), "db": 0} for host, port in hosts])
    until, count = time.monotonic() + float(seconds), 0
    while time.monotonic() < until:
        lock = manager.lock(f"py:{count % 1024}", 30000)
        assert lock, "nobody else wants it"
        manager.unlock(lock)
        count += 1
    print(count)


main(*sys.argv[1:])

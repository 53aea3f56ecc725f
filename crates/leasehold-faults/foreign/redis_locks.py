"""A foreign client of Redis locks that does what it is told on standard input.

Usage: redis_locks.py redis-py|redlock-py|by-hand PORT
Orders: `try KEY` answers `held` or `refused`; `release` answers `released` or `not held`.
"""

import sys

import redis

TTL_MS = 60_000


class RedisPy:
    """The lock of redis-py itself."""

    def __init__(self, port):
        self.client = redis.Redis(port=port)
        self.lock = None

    def try_lock(self, key):
        lock = self.client.lock(key, timeout=TTL_MS / 1000)
        if not lock.acquire(blocking=False):
            return False
        self.lock = lock
        return True

    def release(self):
        self.lock.release()
        return True


class RedlockPy:
    """redlock-py, on one server."""

    def __init__(self, port):
        import redlock

        servers = [{"host": "127.0.0.1", "port": port, "db": 0}]
        self.manager = redlock.Redlock(servers, retry_count=1)
        self.lock = None

    def try_lock(self, key):
        self.lock = self.manager.lock(key, TTL_MS) or None
        return self.lock is not None

    def release(self):
        self.manager.unlock(self.lock)
        return True


class ByHand:
    """SET NX PX, and a script that deletes what is ours."""

    DELETE = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0"

    def __init__(self, port):
        self.client = redis.Redis(port=port)
        self.key = None

    def try_lock(self, key):
        self.key = key
        return bool(self.client.set(key, "by hand", nx=True, px=TTL_MS))

    def release(self):
        return self.client.eval(self.DELETE, 1, self.key, "by hand") == 1


LIBRARIES = {"redis-py": RedisPy, "redlock-py": RedlockPy, "by-hand": ByHand}


def main():
    client = LIBRARIES[sys.argv[1]](int(sys.argv[2]))
    for line in sys.stdin:
        order, *words = line.split()
        if order == "try":
            print("held" if client.try_lock(words[0]) else "refused", flush=True)
        else:
            print("released" if client.release() else "not held", flush=True)


main()

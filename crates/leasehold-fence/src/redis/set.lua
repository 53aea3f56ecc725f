-- KEYS: the value. ARGV: what it becomes.
redis.call('SET', KEYS[1], ARGV[1])

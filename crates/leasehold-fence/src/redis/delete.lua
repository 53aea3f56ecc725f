-- KEYS: the value. Answers whether it was there. The mark stays, as a tombstone.
return redis.call('DEL', KEYS[1])

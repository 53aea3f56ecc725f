-- Gives up a place in the queue, or the lock itself if it was granted meanwhile.
-- KEYS  lock, record, queue
-- ARGV  channel and holder, owner, ttl in ms, and when it was seen in the queue last and with which
--       number, or '' if that is not known
local owner = ARGV[2]
step_out(KEYS[3], owner, ARGV[4], ARGV[3], ARGV[1])
if redis.pcall('GET', KEYS[1]) == owner then
  call('DEL', KEYS[1])
  serve(KEYS[1], KEYS[2], KEYS[3])
end
return 1

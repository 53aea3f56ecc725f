-- Gives up a place in line, or the lock itself if it was granted meanwhile.
-- KEYS  lock, record, line
-- ARGV  owner
step_out(KEYS[3], ARGV[1])
if redis.pcall('GET', KEYS[1]) == ARGV[1] then
  call('DEL', KEYS[1])
  serve(KEYS[1], KEYS[2], KEYS[3])
end
return 1

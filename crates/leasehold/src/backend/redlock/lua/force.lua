-- Takes a lock away from its holder, records who and why, tells who waits.
-- KEYS  marker, lock, record, queue, forced
-- ARGV  how the marker begins, by, reason, for how long to remember it in ms
-- Answers the marker if it is another. Otherwise {the token that was ended, or 0 for a
-- foreign holder}, or {} if nobody held it.
local lock, record, queue, forced = KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local value = redis.pcall('GET', lock)
if not value then
  return {}
end
local known = redis.call('GET', record)
local token, whose, channel = '0', nil, nil
if known then
  token, whose, channel = string.match(known, '^(%d+) %d+ (%S+) (%S+)')
end
local ours = whose == value
if not ours then
  token = '0'
end
local time = redis.call('TIME')
redis.call('DEL', lock)
redis.call('HSET', forced, 'token', token,
  'at', string.format('%.0f', time[1] * 1000000 + time[2]), 'by', ARGV[2], 'reason', ARGV[3])
redis.call('PEXPIRE', forced, ARGV[4])
if ours then
  -- Its holder need not wait for the next renewal to learn of it.
  redis.call('PUBLISH', channel, 'f ' .. string.sub(value, 1, 32))
end
wake(queue)
return { tonumber(token) }

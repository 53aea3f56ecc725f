-- Takes a lock away from its holder, records who and why, lets the next waiter in.
-- KEYS  lock, record, queue, forced
-- ARGV  by, reason, for how long to remember it in ms
-- Answers the token that was ended (0 for a foreign holder), or nil if nobody held it.
local lock, record, queue, forced = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local value = redis.pcall('GET', lock)
if not value then
  return nil
end
local known = call('GET', record)
local ours = owner_of(known) == value
local token = ours and token_of(known) or 0
call('DEL', lock)
call('HSET', forced, 'token', string.format('%.0f', token),
  'at', string.format('%.0f', micros), 'by', ARGV[1], 'reason', ARGV[2])
call('PEXPIRE', forced, ARGV[3])
if ours then
  -- Its holder need not wait for the next renewal to learn of it.
  local channel = string.match(known, '^%d+ %d+ %S+ (%S+)')
  if channel ~= '-' then
    publish(channel, 'f ' .. value)
  end
end
serve(lock, record, queue)
return token

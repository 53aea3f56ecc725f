-- Heartbeats of waiters: each shows that it still waits, lets the next one in where the
-- lock is free, and learns of a grant whose message it missed.
-- KEYS  for each waiter: lock, record, line
-- ARGV  channel, holder; for each waiter: owner, ttl in ms, number
-- Answers for each waiter: its token, or {1 queued, left in ms, 1 if first in line}, or
-- {0} if it has no place (any more).
local channel, holder = ARGV[1], ARGV[2]
local answers = {}
for i = 1, #KEYS / 3 do
  local lock, record, line = KEYS[3 * i - 2], KEYS[3 * i - 1], KEYS[3 * i]
  local owner, ttl, number = ARGV[3 * i], ARGV[3 * i + 1], ARGV[3 * i + 2]
  local value = redis.pcall('GET', lock)
  local answer = { 0 }
  if value ~= owner and redis.call('HEXISTS', line, owner) == 1 then
    -- Before others are judged by it: we are here.
    local first = stand(line, owner, number, ttl, channel, holder)
    if not value then
      value = serve(lock, record, line)
    end
    answer = { 1, redis.call('PTTL', lock), first and 1 or 0 }
  end
  if value == owner then
    redis.call('PEXPIRE', lock, ttl)
    answer = token_held(record, owner, channel, holder, ttl)
  end
  answers[i] = answer
end
return answers

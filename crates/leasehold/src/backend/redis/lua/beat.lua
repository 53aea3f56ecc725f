-- Heartbeats of waiters: each shows that it still waits, lets the next one in where the
-- lock is free, and learns of a grant whose message it missed.
-- KEYS  for each waiter: lock, record, queue
-- ARGV  channel and holder; for each waiter: owner, ttl in ms, number, and when it was seen
--       in the queue last and with which number
-- Answers for each waiter: its token, or {1 queued, left in ms, 1 if it should look when that is
-- over, as the first in the queue does, when it was seen}, or {0} if it has no place (any more).
local who = ARGV[1]
local answers = {}
for i = 1, #KEYS / 3 do
  local lock, record, queue = KEYS[3 * i - 2], KEYS[3 * i - 1], KEYS[3 * i]
  local owner, ttl, number, said = ARGV[4 * i - 2], ARGV[4 * i - 1], ARGV[4 * i], ARGV[4 * i + 1]
  local value = redis.pcall('GET', lock)
  local answer = { 0 }
  local place = value ~= owner and place_of(queue, owner, said, ttl, who)
  if place then
    -- Before others are judged by it: we are here.
    local _, seen = stand(queue, place, owner, number, ttl, who)
    if not value then
      value = serve(lock, record, queue)
    end
    -- A lock that is still free waits for the next look at its queue: soon.
    answer = value and { 1, call('PTTL', lock), place == 0 and 1 or 0, seen } or { 1, 0, 1, seen }
  end
  if value == owner then
    call('PEXPIRE', lock, ttl)
    answer = token_held(record, owner, who, ttl)
  end
  answers[i] = answer
end
return answers

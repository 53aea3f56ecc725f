-- Takes each lock that is free; where a claim asks to queue, takes a place in its line.
-- KEYS  for each claim: lock, record, line
-- ARGV  channel, holder; for each claim: owner, ttl in ms, 1 to queue or 0, number
-- Answers for each claim: the token, or {1 queued or 0 held, left in ms, 1 if first in
-- line, what the lock key holds, the record}.
--
-- This part takes those that nobody holds or waits for; the rest of the script, with all
-- that it defines, is for the others.
local channel, holder = ARGV[1], ARGV[2]
local answers = {}
local others = {}
for i = 1, #KEYS / 3 do
  local lock, record = KEYS[3 * i - 2], KEYS[3 * i - 1]
  if redis.call('EXISTS', lock, KEYS[3 * i]) == 0 then
    local owner, ttl = ARGV[4 * i - 1], ARGV[4 * i]
    local token = next_token(token_of(redis.call('GET', record)))
    redis.call('SET', lock, owner, 'PX', ttl)
    remember(record, token, owner, channel, holder, ttl)
    answers[i] = token
  else
    others[#others + 1] = i
  end
end
if #others == 0 then
  return answers
end

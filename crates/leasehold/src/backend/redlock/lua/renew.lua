-- Extends each lease that is still its owner's, under its token. Never takes one again.
-- KEYS  marker; for each hold: lock, record, forced
-- ARGV  how the marker begins; for each hold: owner, token, ttl in ms
-- Answers the marker if it is another. Otherwise for each hold: 1 renewed; 0 nobody's;
-- 2 another's; {by, reason} released by force.
local answers = {}
for i = 1, (#KEYS - 1) / 3 do
  local lock, record = KEYS[3 * i - 1], KEYS[3 * i]
  local owner, token, ttl = ARGV[3 * i - 1], ARGV[3 * i], tonumber(ARGV[3 * i + 1])
  local value = redis.pcall('GET', lock)
  local known = redis.call('GET', record)
  local whose = known and string.match(known, '^%d+ %d+ (%S+)')
  -- A claim makes several attempts, and its token tells which of them this is about.
  local mine = value and last_of(known) == tonumber(token)
    and (value == owner or value == whose and string.sub(value, 1, #owner) == owner)
  if mine then
    raise(ttl, 0)
    redis.call('PEXPIRE', lock, ttl)
    redis.call('PEXPIRE', record, lifetime(tonumber(token), ttl))
    answers[i] = 1
  else
    local forced = redis.call('HMGET', KEYS[3 * i + 1], 'token', 'by', 'reason')
    if forced[1] == token then
      answers[i] = { forced[2], forced[3] }
    else
      answers[i] = value and 2 or 0
    end
  end
end
return answers

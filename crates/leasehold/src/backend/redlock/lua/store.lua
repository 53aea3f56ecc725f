-- Stores the token that a client decided on, if the lock is still its own and the token new.
-- KEYS  marker; for each claim: lock, record
-- ARGV  how the marker begins, channel and holder; for each claim: owner of the attempt, token,
--       ttl in ms
-- Answers the marker if it is another. Otherwise for each claim: 1 stored, 0 not.
local answers = {}
for i = 1, (#KEYS - 1) / 2 do
  local lock, record = KEYS[2 * i], KEYS[2 * i + 1]
  local owner, token, ttl = ARGV[3 * i], tonumber(ARGV[3 * i + 1]), tonumber(ARGV[3 * i + 2])
  local stored = redis.pcall('GET', lock) == owner
    and keep(record, redis.call('GET', record), owner, token, ttl, ARGV[2])
  answers[i] = stored and 1 or 0
end
return answers

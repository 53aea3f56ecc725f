-- Extends each lease that is still its owner's to its whole TTL. Never takes one again.
-- KEYS  for each hold: lock, record
-- ARGV  for each hold: owner, token, ttl in ms
-- Answers for each hold: 1 renewed, 0 not the owner's.
local answers = {}
for i = 1, #KEYS / 2 do
  local lock, record = KEYS[2 * i - 1], KEYS[2 * i]
  local owner, token, ttl = ARGV[3 * i - 2], ARGV[3 * i - 1], ARGV[3 * i]
  if redis.pcall('GET', lock) == owner then
    call('PEXPIRE', lock, ttl)
    if call('PEXPIRE', record, lifetime(token, ttl)) == 0 then
      remember(record, tonumber(token), owner, '- -', ttl)
    end
    answers[i] = 1
  else
    answers[i] = 0
  end
end
return answers

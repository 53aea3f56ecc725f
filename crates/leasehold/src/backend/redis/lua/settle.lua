-- After claims without an answer: is it mine? If not, the owner leaves the line and is
-- barred, so that a claim that is still on its way takes nothing.
-- KEYS  for each claim: lock, record, line, bar
-- ARGV  channel and holder; for each claim: owner, ttl in ms, for how long to bar in ms, and
--       when it was seen in line last and with which number, or '' if that is not known
-- Answers for each claim: the token, or 0.
local who = ARGV[1]
local answers = {}
for i = 1, #KEYS / 4 do
  local lock, record, line, bar = KEYS[4 * i - 3], KEYS[4 * i - 2], KEYS[4 * i - 1], KEYS[4 * i]
  local owner, ttl, term = ARGV[4 * i - 2], ARGV[4 * i - 1], ARGV[4 * i]
  if redis.pcall('GET', lock) == owner then
    call('PEXPIRE', lock, ttl)
    answers[i] = token_held(record, owner, who, ttl)
  else
    step_out(line, owner, ARGV[4 * i + 1], ttl, who)
    call('SET', bar, '', 'PX', term)
    answers[i] = 0
  end
end
return answers

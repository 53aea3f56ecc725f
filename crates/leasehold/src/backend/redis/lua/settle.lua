-- After claims without an answer: is it mine? If not, the owner leaves the queue and gets a
-- tombstone, so that a claim that is still on its way takes nothing.
-- KEYS  for each claim: lock, record, queue, tombstone
-- ARGV  channel and holder; for each claim: owner, ttl in ms, how long its tombstone lasts in
--       ms, and when it was seen in the queue last and with which number, or '' if that is not
--       known
-- Answers for each claim: the token, or 0.
local who = ARGV[1]
local answers = {}
for i = 1, #KEYS / 4 do
  local lock, record, queue = KEYS[4 * i - 3], KEYS[4 * i - 2], KEYS[4 * i - 1]
  local tombstone = KEYS[4 * i]
  local owner, ttl, term = ARGV[4 * i - 2], ARGV[4 * i - 1], ARGV[4 * i]
  if redis.pcall('GET', lock) == owner then
    call('PEXPIRE', lock, ttl)
    answers[i] = token_held(record, owner, who, ttl)
  else
    step_out(queue, owner, ARGV[4 * i + 1], ttl, who)
    call('SET', tombstone, '', 'PX', term)
    answers[i] = 0
  end
end
return answers

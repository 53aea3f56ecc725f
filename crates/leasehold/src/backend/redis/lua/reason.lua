-- Why leases are gone.
-- KEYS  for each hold: lock, forced
-- ARGV  for each hold: token
-- Answers for each hold: {by, reason} of a force-release, 1 if another has it, or 0.
local answers = {}
for i = 1, #KEYS / 2 do
  local forced = redis.call('HMGET', KEYS[2 * i], 'token', 'by', 'reason')
  if forced[1] == ARGV[i] then
    answers[i] = { forced[2], forced[3] }
  else
    answers[i] = redis.call('EXISTS', KEYS[2 * i - 1])
  end
end
return answers

-- Gives each lock back, if it is still the owner's, and lets its next waiter in.
-- KEYS  for each hold: lock, record, line
-- ARGV  for each hold: owner, token
-- Answers for each hold: 1 released, 0 not held.
--
-- This part does those that nobody waits for; the rest is for the others.
local answers = {}
local others = {}
for i = 1, #KEYS / 3 do
  local lock = KEYS[3 * i - 2]
  if redis.pcall('GET', lock) ~= ARGV[2 * i - 1] then
    answers[i] = 0
  elseif redis.call('EXISTS', KEYS[3 * i]) == 0 then
    redis.call('DEL', lock)
    answers[i] = 1
  else
    others[#others + 1] = i
  end
end
if #others == 0 then
  return answers
end

-- Gives each lock back, if it is still the owner's, and lets its next waiter in.
-- KEYS  for each hold: lock, record, line
-- ARGV  for each hold: owner, token
-- Answers for each hold: 1 released, 0 not held.
local answers = {}
for i = 1, #KEYS / 3 do
  local lock, line = KEYS[3 * i - 2], KEYS[3 * i]
  if redis.pcall('GET', lock) ~= ARGV[2 * i - 1] then
    answers[i] = 0
  else
    -- Whoever has the lock has its last token.
    if not serve(lock, KEYS[3 * i - 1], line, tonumber(ARGV[2 * i])) then
      redis.call('DEL', lock)
    end
    answers[i] = 1
  end
end
return answers

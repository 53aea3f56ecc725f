-- Gives each lock back, if it is still the owner's, and tells who waits for it.
-- KEYS  marker; for each hold: lock, line
-- ARGV  how the marker begins, 1 to tell who waits or 0; for each hold: owner
-- Answers the marker if it is another. Otherwise for each hold: 1 released, 0 not held.
local answers = {}
for i = 1, (#KEYS - 1) / 2 do
  local lock, line = KEYS[2 * i], KEYS[2 * i + 1]
  local owner = ARGV[i + 2]
  local value = redis.pcall('GET', lock)
  if type(value) == 'string' and string.sub(value, 1, #owner) == owner then
    redis.call('DEL', lock)
    if ARGV[2] == '1' and redis.call('EXISTS', line) == 1 then
      wake(line)
    end
    answers[i] = 1
  else
    answers[i] = 0
  end
end
return answers

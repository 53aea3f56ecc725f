-- The releases that are not common.
local answers = {}
for i = 1, count do
  local lock, queue = KEYS[i + 1], KEYS[count + 1 + i]
  local value, owner = values[i + 1], ARGV[i + 2]
  if value and string.sub(value, 1, #owner) == owner then
    redis.call('DEL', lock)
    if ARGV[2] == '1' and redis.call('EXISTS', queue) == 1 then
      wake(queue)
    end
    answers[i] = 1
  else
    answers[i] = 0
  end
end
return answers

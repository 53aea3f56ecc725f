-- Whatever these owners have here, they give up, and what they still asked for is not
-- granted when it arrives.
-- KEYS  marker; for each claim: lock, line
-- ARGV  how the marker begins; for each claim: owner, for how long to bar it in ms
-- Answers the marker if it is another. Otherwise for each claim: 1.
local answers = {}
for i = 1, (#KEYS - 1) / 2 do
  local lock, line = KEYS[2 * i], KEYS[2 * i + 1]
  local owner, bar = ARGV[2 * i], tonumber(ARGV[2 * i + 1])
  local value = redis.pcall('GET', lock)
  redis.call('HDEL', line, 'w' .. owner)
  if redis.call('HLEN', line) > 4096 then
    -- Bars of a line that is never idle would pile up.
    local fields = redis.call('HGETALL', line)
    local now = line_clock()
    for j = 1, #fields, 2 do
      if string.byte(fields[j]) == 98 and tonumber(fields[j + 1]) < now then
        redis.call('HDEL', line, fields[j])
      end
    end
  end
  if bar > 0 then
    redis.call('HSET', line, 'b' .. owner, string.format('%.0f', line_clock() + bar))
    keep_line(line, bar)
  end
  if type(value) == 'string' and string.sub(value, 1, #owner) == owner then
    redis.call('DEL', lock)
    wake(line)
  end
  answers[i] = 1
end
return answers

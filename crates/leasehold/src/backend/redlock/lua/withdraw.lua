-- Whatever these owners have here, they give up, and what they still asked for is not
-- granted when it arrives.
-- KEYS  marker; for each claim: lock, queue
-- ARGV  how the marker begins; for each claim: owner, how long its tombstone lasts in ms or 0
-- Answers the marker if it is another. Otherwise for each claim: 1.
local answers = {}
for i = 1, (#KEYS - 1) / 2 do
  local lock, queue = KEYS[2 * i], KEYS[2 * i + 1]
  local owner, term = ARGV[2 * i], tonumber(ARGV[2 * i + 1])
  local value = redis.pcall('GET', lock)
  redis.call('HDEL', queue, 'w' .. owner)
  if redis.call('HLEN', queue) > 4096 then
    -- Tombstones of a queue that is never idle would pile up.
    local fields = redis.call('HGETALL', queue)
    local now = queue_clock()
    for j = 1, #fields, 2 do
      if string.byte(fields[j]) == 98 and tonumber(fields[j + 1]) < now then
        redis.call('HDEL', queue, fields[j])
      end
    end
  end
  if term > 0 then
    redis.call('HSET', queue, 'b' .. owner, string.format('%.0f', queue_clock() + term))
    keep_queue(queue, term)
  end
  if type(value) == 'string' and string.sub(value, 1, #owner) == owner then
    redis.call('DEL', lock)
    wake(queue)
  end
  answers[i] = 1
end
return answers

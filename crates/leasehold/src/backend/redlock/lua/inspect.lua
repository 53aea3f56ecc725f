-- Looks at locks.
-- KEYS  marker; for each lock: lock, record, queue, forced
-- ARGV  how the marker begins
-- Answers the marker if it is another. Otherwise for each lock: {1 if its key exists, what
-- it holds ('' for another type), left in ms, record, how many wait, token, at, by and
-- reason of the last force-release}.
local now = queue_clock()
local answers = {}
for i = 1, (#KEYS - 1) / 4 do
  local lock, record, queue = KEYS[4 * i - 2], KEYS[4 * i - 1], KEYS[4 * i]
  local value = redis.pcall('GET', lock)
  local waiters = 0
  local fields = redis.call('HGETALL', queue)
  for j = 1, #fields, 2 do
    local seen = string.match(fields[j + 1], '^%d+ (%d+) %S+$')
    if seen and math.abs(now - seen) < PATIENCE then
      waiters = waiters + 1
    end
  end
  local forced = redis.call('HMGET', KEYS[4 * i + 1], 'token', 'at', 'by', 'reason')
  answers[i] = {
    value and 1 or 0, type(value) == 'string' and value or '', redis.call('PTTL', lock),
    redis.call('GET', record) or '', waiters,
    forced[1] or '', forced[2] or '', forced[3] or '', forced[4] or '',
  }
end
return answers

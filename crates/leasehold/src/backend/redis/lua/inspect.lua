-- Looks at locks.
-- KEYS  for each lock: lock, record, queue, forced
-- Answers for each lock: {1 if its key exists, what it holds ('' for another type), left
-- in ms, record, how many wait, token, at, by and reason of the last force-release}. Of a very
-- long queue only the last 10000 are looked at: a server does nothing else meanwhile.
local answers = {}
for i = 1, #KEYS / 4 do
  local lock, record, queue = KEYS[4 * i - 3], KEYS[4 * i - 2], KEYS[4 * i - 1]
  local value = redis.pcall('GET', lock)
  local waiters = 0
  for _, waiter in ipairs(call('LRANGE', queue, -10000, -1)) do
    local seen = string.match(waiter, '^%S+ (%d+) ')
    if seen and math.abs(millis - seen) < PATIENCE then
      waiters = waiters + 1
    end
  end
  local forced = call('HMGET', KEYS[4 * i], 'token', 'at', 'by', 'reason')
  answers[i] = {
    value and 1 or 0, type(value) == 'string' and value or '', call('PTTL', lock),
    call('GET', record) or '', waiters,
    forced[1] or '', forced[2] or '', forced[3] or '', forced[4] or '',
  }
end
return answers

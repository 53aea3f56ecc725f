-- Gives each lock back, if it is still the owner's, and lets its next waiter in.
-- KEYS  for each hold: lock, record, line
-- ARGV  for each hold: owner, token
-- Answers for each hold: 1 released, 0 not held.
--
-- This part does what is common: nobody waits, or the first in line does and another right
-- behind it. It defines nothing, which would cost more than the work. What is left goes to
-- the rest of the script.
local call = redis.call
local answers = {}
local others = {}
for i = 1, #KEYS / 3 do
  local lock, line = KEYS[3 * i - 2], KEYS[3 * i]
  if redis.pcall('GET', lock) ~= ARGV[2 * i - 1] then
    answers[i] = 0
  else
    local place = call('HGET', line, 'h')
    if not place then
      call('DEL', lock)
      answers[i] = 1
    else
      -- What `serve` of line.lua does, where nothing is special.
      local ahead = call('HMGET', line, place, place + 1)
      local waiter, next = ahead[1], ahead[2]
      if waiter and next then
        local owner, seen, number, ttl, who, channel =
          string.match(waiter, '^(%S+) (%d+) (%d+) (%d+) ((%S+) .*)$')
        local time = call('TIME')
        local micros = time[1] * 1000000 + time[2]
        if math.abs(micros / 1000 - seen) < 3000 and micros > tonumber(ARGV[2 * i])
          and micros < 4503599627370496 and ttl * 2 <= 3600000
        then
          local term = math.min(ttl, 3000)
          local token = string.format('%.0f', micros)
          call('SET', lock, owner, 'PX', term)
          call('SET', KEYS[3 * i - 1], token .. ' ' .. token .. ' ' .. owner .. ' ' .. who,
            'PX', '3600000')
          call('HDEL', line, place, owner)
          call('HSET', line, 'h', place + 1)
          call(string.byte(channel) == 83 and 'SPUBLISH' or 'PUBLISH', string.sub(channel, 3),
            'g ' .. owner .. ' ' .. token .. ' ' .. number .. ' ' .. term)
          answers[i] = 1
        end
      end
    end
  end
  if not answers[i] then
    others[#others + 1] = i
  end
end
if #others == 0 then
  return answers
end

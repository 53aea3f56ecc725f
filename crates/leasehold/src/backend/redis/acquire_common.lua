-- Takes each lock that is free; where a claim asks to queue, takes a place in its line.
-- KEYS  for each claim: lock, record, line
-- ARGV  channel and holder; for each claim: owner, ttl in ms, number, or 0 not to queue
-- Answers for each claim: the token, or {1 queued or 0 held, left in ms if first in line
-- or -1, what the lock key holds, the record}.
--
-- This part does what is common: a lock that is free and had no line, a newcomer to the
-- line of one that is held. It defines nothing, which would cost more than the work. What
-- is left goes to the rest of the script.
local call = redis.call
local time = call('TIME')
local micros = time[1] * 1000000 + time[2]
local millis = math.floor(micros / 1000)
local who = ARGV[1]
local answers = {}
local others = {}
for i = 1, #KEYS / 3 do
  local lock, record, line = KEYS[3 * i - 2], KEYS[3 * i - 1], KEYS[3 * i]
  local owner, ttl, number = ARGV[3 * i - 1], ARGV[3 * i], ARGV[3 * i + 1]
  -- A key of another type holds nothing here.
  local known = call('MGET', lock, record)
  local value, last = known[1], known[2]
  if value and value ~= owner and number ~= '0' then
    local places = call('HMGET', line, owner, 'b' .. owner, 'h', 't', 'x')
    if not places[1] and not places[2] and (tonumber(places[5]) or 0) > millis + 30000 then
      local place = places[4]
      local first = place == places[3]
      call('HSET', line, place, owner .. ' ' .. millis .. ' ' .. number .. ' ' .. ttl .. ' ' .. who,
        owner, place, 't', place + 1)
      answers[i] = { 1, first and call('PTTL', lock) or -1, value, last or '' }
    end
  elseif value and value ~= owner then
    if call('HEXISTS', line, 'b' .. owner) == 0 then
      answers[i] = { 0, -1, value, last or '' }
    end
  elseif not value and micros > (last and tonumber(string.match(last, '^%d+')) or 0)
    and micros < 4503599627370496 and ttl * 2 <= 3600000 and call('EXISTS', lock, line) == 0
  then
    local token = string.format('%.0f', micros)
    call('SET', lock, owner, 'PX', ttl)
    call('SET', record, token .. ' ' .. token .. ' ' .. owner .. ' ' .. who, 'PX', '3600000')
    answers[i] = micros
  end
  if not answers[i] then
    others[#others + 1] = i
  end
end
if #others == 0 then
  return answers
end

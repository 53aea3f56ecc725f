-- Takes each lock that is free; where a claim asks to queue, takes a place in its line.
-- KEYS  for each claim: lock, record, line
-- ARGV  channel and holder; for each claim: owner, ttl in ms, number, or 0 not to queue
-- Answers for each claim: the token, or {1 queued or 0 held, left in ms if first in line
-- or -1, what the lock key holds, the record}.
--
-- This part does what is common: a lock that is free and had no line, a newcomer to the
-- line of one that is held. It defines nothing, and compares times as texts of one length:
-- functions and numbers would cost more than the work. What is left goes to the rest of
-- the script.
local call = redis.call
local time = call('TIME')
local second, rest = time[1], time[2]
if #rest < 6 then
  rest = string.rep('0', 6 - #rest) .. rest
end
-- The clock in µs: 16 digits until the year 2286.
local now = second .. rest
local usual = #now == 16 and now < '4503599627370496'
local who = ARGV[1]
local answers = {}
local others
for i = 1, #KEYS / 3 do
  local lock, record, line = KEYS[3 * i - 2], KEYS[3 * i - 1], KEYS[3 * i]
  local owner, ttl, number = ARGV[3 * i - 1], ARGV[3 * i], ARGV[3 * i + 1]
  local answer
  -- A key of another type holds nothing here.
  local known = call('MGET', lock, record)
  local value, last = known[1], known[2]
  if not usual then
    answer = nil
  elseif not value then
    -- A TTL of six digits is less than half of what a record is kept for at least.
    if #ttl < 7 and (not last or string.sub(last, 17, 17) == ' ' and string.sub(last, 1, 16) < now)
      and call('EXISTS', lock, line) == 0
    then
      call('SET', lock, owner, 'PX', ttl)
      call('SET', record, now .. ' ' .. now .. ' ' .. owner .. ' ' .. who, 'PX', '3600000')
      answer = tonumber(now)
    end
  elseif value == owner then
    answer = nil
  elseif number == '0' then
    if call('HEXISTS', line, 'b' .. owner) == 0 then
      answer = { 0, -1, value, last or '' }
    end
  else
    -- What `stand` of line.lua does, where nothing is special.
    local places = call('HMGET', line, owner, 'b' .. owner, 'h', 't', 'x')
    local first, place, lives = places[3], places[4], places[5]
    if not places[1] and not places[2] then
      local waiter = owner .. ' ' .. string.sub(now, 1, 13) .. ' ' .. number .. ' ' .. ttl .. ' ' .. who
      local millis = string.sub(rest, 1, 3)
      if not first and not place and not lives then
        call('HSET', line, 'h', '0', 't', '1', '0', waiter, owner, '0', 'x', second + 60 .. millis)
        call('PEXPIRE', line, '60000')
        answer = { 1, call('PTTL', lock), value, last or '' }
      elseif first and place and lives and #lives == 13 and lives > second + 30 .. millis then
        call('HSET', line, place, waiter, owner, place, 't', place + 1 .. '')
        answer = { 1, place == first and call('PTTL', lock) or -1, value, last or '' }
      end
    end
  end
  if answer then
    answers[i] = answer
  else
    others = others or {}
    others[#others + 1] = i
  end
end
if not others then
  return answers
end
local micros = tonumber(now)
local millis = math.floor(micros / 1000)

-- Takes each lock that is free; where a claim asks to queue, takes a place in its line.
-- KEYS  for each claim: lock, record, line
-- ARGV  channel and holder; for each claim: owner, ttl in ms, number, or 0 not to queue
-- Answers for each claim: the token, or {1 queued or 0 held, left in ms if first in line
-- or -1, what the lock key holds, the record}.
--
-- This part does what is common: a lock that is free and had no line, a newcomer to the
-- line of one that is held. It defines nothing, and compares times as texts of one length:
-- functions and numbers would cost more than the work. What can be asked about all claims
-- at once is, as a call costs more than what it does. What is left goes to the rest of the
-- script.
local call, sub, byte = redis.call, string.sub, string.byte
local time = call('TIME')
local second, rest = time[1], time[2]
if #rest < 6 then
  rest = string.rep('0', 6 - #rest) .. rest
end
-- The clock in µs: 16 digits until the year 2286.
local now = second .. rest
local usual = #now == 16 and now < '4503599627370496'
local who = ARGV[1]
local count = #KEYS / 3
-- What all locks and records hold (a key of another type: nothing), and whether nobody has
-- a line.
local known, lines, no_lines, token
if count == 1 then
  known = call('MGET', KEYS[1], KEYS[2])
else
  local keys = {}
  lines = {}
  for i = 1, count do
    keys[2 * i - 1], keys[2 * i], lines[i] = KEYS[3 * i - 2], KEYS[3 * i - 1], KEYS[3 * i]
  end
  known = call('MGET', unpack(keys))
end
local answers = {}
local others
for i = 1, count do
  local lock, record, line = KEYS[3 * i - 2], KEYS[3 * i - 1], KEYS[3 * i]
  local owner, ttl, number = ARGV[3 * i - 1], ARGV[3 * i], ARGV[3 * i + 1]
  local value, last = known[2 * i - 1], known[2 * i]
  local answer
  if not usual then
    answer = nil
  elseif not value then
    if lines and no_lines == nil then
      no_lines = call('EXISTS', unpack(lines)) == 0
    end
    -- A TTL of six digits is less than half of what a record is kept for at least. (What
    -- is set only if it is not there needs no look at its type.)
    if #ttl < 7 and (not last or byte(last, 17) == 32 and sub(last, 1, 16) < now)
      and (no_lines or call('EXISTS', line) == 0)
      and call('SET', lock, owner, 'PX', ttl, 'NX')
    then
      call('SET', record, now .. ' ' .. now .. ' ' .. owner .. ' ' .. who, 'PX', '3600000')
      token = token or tonumber(now)
      answer = token
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
      local waiter = owner .. ' ' .. sub(now, 1, 13) .. ' ' .. number .. ' ' .. ttl .. ' ' .. who
      local millis = sub(rest, 1, 3)
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

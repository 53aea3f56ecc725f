-- Takes each lock that is free, and stores the guess as its token if that is new; where a
-- claim asks to queue, notes who waits.
-- KEYS  marker; the record of each claim's lock; each lock; the queue of each
-- ARGV  how the marker begins, channel and holder, ttl in ms, 1 to queue or 0; for each
--       claim: owner of the attempt, guess or 0; for each claim, where there is no ttl for
--       all: ttl in ms, 1 to queue or 0
-- Answers the marker if it is another. Otherwise how many claims there were, if all are
-- granted with their guesses. Otherwise for each claim: 1 granted, with the guess; {1, last
-- token, clock} granted without; {0, last token, clock, left in ms, what the lock key holds,
-- the record} held by another.
--
-- This part does what is common: locks that are free, that nobody waits for, and guesses that
-- are good. It defines nothing and compares tokens of one length as texts: functions and numbers
-- would cost more than the work. It asks about all locks at once. What is left goes to the rest
-- of the script.
local call, sub = redis.call, string.sub
local count = (#KEYS - 1) / 3
local records = call('MGET', unpack(KEYS, 1, count + 1))
local marker, expected = records[1], ARGV[1]
if not marker or sub(marker, 1, #expected) ~= expected then
  return marker or ''
end
local longest, ceiling, floor = string.match(marker, '^(%d+) (%d+) (%d+)', #expected + 1)
longest, ceiling, floor = tonumber(longest), tonumber(ceiling), tonumber(floor)
local time = call('TIME')
local rest = time[2]
if #rest < 6 then
  rest = string.rep('0', 6 - #rest) .. rest
end
local now = time[1] .. rest
local micros = tonumber(now)
local who = ARGV[2]
local since, by = ' ' .. now .. ' ', ' ' .. who
-- The highest guess that is good, and the longest TTL for which a record is kept as usual.
local highest = micros + 3600000000
if ceiling < highest then
  highest = ceiling
end
local longest_usual = longest < 1800000 and longest or 1800000
local common = ARGV[3] ~= '' and ARGV[3]
local ttl, usual = common, common and tonumber(common) <= longest_usual
local queues = call('EXISTS', unpack(KEYS, 2 * count + 2, 3 * count + 1))
local answers = {}
local others
for i = 1, count do
  local known, owner, guess = records[i + 1], ARGV[2 * i + 3], ARGV[2 * i + 4]
  local token = tonumber(guess)
  local new
  if not known then
    -- What stands for the last token where no record is left (token.lua), and below the ceiling.
    new = token > micros - 3600000000
  elseif #guess == 16 and string.byte(known, 17) == 32 then
    new = guess > sub(known, 1, 16)
  else
    new = token > (tonumber(string.match(known, '^%d+')) or ceiling)
  end
  if not common then
    ttl = ARGV[2 * count + 2 * i + 3]
    usual = tonumber(ttl) <= longest_usual
  end
  if new and usual and token > floor and token <= highest
    and (queues == 0 or call('EXISTS', KEYS[2 * count + 1 + i]) == 0)
    and call('SET', KEYS[count + 1 + i], owner, 'NX', 'PX', ttl)
  then
    call('SET', KEYS[i + 1], guess .. since .. owner .. by, 'PX',
      token <= micros and '3600000'
        or string.format('%.0f', 3600000 + token / 1000 - math.floor(micros / 1000)))
    answers[i] = 1
  else
    others = others or {}
    others[#others + 1] = i
  end
end
if not others then
  return count
end
local millis = math.floor(micros / 1000)

-- Takes each lock that is free, and stores the guess as its token if that is new; where a
-- claim asks to queue, notes who waits.
-- KEYS  marker; the record of each claim's lock; each lock; the line of each
-- ARGV  how the marker begins, channel and holder, ttl in ms, 1 to queue or 0; for each
--       claim: owner of the attempt, guess or 0; for each claim, where there is no ttl for
--       all: ttl in ms, 1 to queue or 0
-- Answers the marker if it is another. Otherwise how many claims there were, if all are
-- granted with their guesses. Otherwise for each claim: 1 granted, with the guess; {1, last
-- token, clock} granted without; {0, last token, clock, left in ms, what the lock key holds,
-- the record} held by another.
--
-- This part does what is common: locks that are free, that nobody waits for, and guesses that
-- are good. It defines nothing, which would cost more than the work, and asks about all locks
-- at once. What is left goes to the rest of the script.
local call = redis.call
local count = (#KEYS - 1) / 3
local records = call('MGET', unpack(KEYS, 1, count + 1))
local marker, expected = records[1], ARGV[1]
if not marker or string.sub(marker, 1, #expected) ~= expected then
  return marker or ''
end
local longest, ceiling, floor = string.match(marker, '^(%d+) (%d+) (%d+)', #expected + 1)
longest, ceiling, floor = tonumber(longest), tonumber(ceiling), tonumber(floor)
local time = call('TIME')
local micros = time[1] * 1000000 + time[2]
local who = ARGV[2]
local common = ARGV[3] ~= '' and ARGV[3]
local since = string.format(' %s%06d ', time[1], time[2])
-- The last token where no record is left, as in token.lua.
local expired = math.min(ceiling, micros - 3600000000)
local lines = call('EXISTS', unpack(KEYS, 2 * count + 2, 3 * count + 1))
local answers = {}
local others = {}
for i = 1, count do
  local known, guess = records[i + 1], tonumber(ARGV[2 * i + 4])
  local ttl = common or ARGV[2 * count + 2 * i + 3]
  local last = known and tonumber(string.match(known, '^%d+')) or expired
  if guess > last and guess > floor and guess <= ceiling and guess <= micros + 3600000000
    and tonumber(ttl) <= longest and tonumber(ttl) <= 1800000
    and (lines == 0 or call('EXISTS', KEYS[2 * count + 1 + i]) == 0)
    and call('SET', KEYS[count + 1 + i], ARGV[2 * i + 3], 'NX', 'PX', ttl)
  then
    call('SET', KEYS[i + 1], ARGV[2 * i + 4] .. since .. ARGV[2 * i + 3] .. ' ' .. who, 'PX',
      guess <= micros and '3600000'
        or string.format('%.0f', 3600000 + guess / 1000 - math.floor(micros / 1000)))
    answers[i] = 1
  else
    others[#others + 1] = i
  end
end
if #others == 0 then
  return count
end
local millis = math.floor(micros / 1000)

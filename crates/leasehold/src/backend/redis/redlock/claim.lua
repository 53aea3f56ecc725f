-- Takes each lock that is free, and stores the guess as its token if that is new; where a
-- claim asks to queue, notes who waits.
-- KEYS  marker; for each claim: lock, record, line
-- ARGV  how the marker begins, channel, holder; for each claim: owner of the attempt, ttl
--       in ms, 1 to queue or 0, guess or 0
-- Answers the marker if it is another. Otherwise for each claim: 1 granted, with the guess;
-- {1, last token, clock} granted without; {0, last token, clock, left in ms, what the lock
-- key holds, the record} held by another.
local channel, holder = ARGV[2], ARGV[3]
-- A guess further ahead than this comes from a clock that is wrong.
local FURTHEST = 3600000000
local OWNER = 32

local function take(lock, record, owner, ttl, guess)
  local known = redis.call('GET', record)
  ttl = tonumber(ttl)
  heed(ttl, 0)
  redis.call('SET', lock, owner, 'PX', ttl)
  guess = tonumber(guess)
  if guess > 0 and guess <= micros + FURTHEST
    and keep(record, known, owner, guess, ttl, channel, holder) then
    return 1
  end
  return { 1, last_of(known), micros }
end

local function contend(lock, record, line, owner, ttl, queue, guess)
  local client = string.sub(owner, 1, OWNER)
  local barred = redis.call('HGET', line, 'b' .. client)
  -- A key of another type is another's lock as well: then this is a table.
  local value = redis.pcall('GET', lock)
  local known = redis.call('GET', record) or ''
  if barred and tonumber(barred) > millis then
    return { 0, last_of(known), micros, -1, '', '' }
  end
  if not value or value == owner then
    redis.call('HDEL', line, 'w' .. client)
    return take(lock, record, owner, ttl, guess)
  end
  if queue == '1' then
    local since = redis.call('HGET', line, 'w' .. client)
    since = since and string.match(since, '^%d+') or string.format('%.0f', millis)
    redis.call('HSET', line, 'w' .. client, string.format('%s %.0f %s', since, millis, channel))
    keep_line(line, LINGER)
  end
  return {
    0, last_of(known), micros, redis.call('PTTL', lock),
    type(value) == 'string' and value or '', known,
  }
end

local answers = {}
for i = 1, (#KEYS - 1) / 3 do
  local lock, record, line = KEYS[3 * i - 1], KEYS[3 * i], KEYS[3 * i + 1]
  local owner, ttl, queue, guess = ARGV[4 * i], ARGV[4 * i + 1], ARGV[4 * i + 2], ARGV[4 * i + 3]
  if redis.call('EXISTS', lock, line) == 0 then
    answers[i] = take(lock, record, owner, ttl, guess)
  else
    answers[i] = contend(lock, record, line, owner, ttl, queue, guess)
  end
end
return answers

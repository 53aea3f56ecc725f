-- The claims that are not common.

-- A guess further ahead than this comes from a clock that is wrong.
local FURTHEST = 3600000000
local OWNER = 32

local function take(lock, record, owner, ttl, guess)
  local known = redis.call('GET', record)
  ttl = tonumber(ttl)
  raise(ttl, 0)
  redis.call('SET', lock, owner, 'PX', ttl)
  guess = tonumber(guess)
  if guess > 0 and guess <= micros + FURTHEST
    and keep(record, known, owner, guess, ttl, who) then
    return 1
  end
  return { 1, last_of(known), micros }
end

local function contend(lock, record, queue, owner, ttl, waits, guess)
  local client = string.sub(owner, 1, OWNER)
  local tombstone = redis.call('HGET', queue, 'b' .. client)
  -- A key of another type is another's lock as well: then this is a table.
  local value = redis.pcall('GET', lock)
  local known = redis.call('GET', record) or ''
  if tombstone and tonumber(tombstone) > millis then
    return { 0, last_of(known), micros, -1, '', '' }
  end
  if not value or value == owner then
    redis.call('HDEL', queue, 'w' .. client)
    return take(lock, record, owner, ttl, guess)
  end
  if waits == '1' then
    local since = redis.call('HGET', queue, 'w' .. client)
    since = since and string.match(since, '^%d+') or string.format('%.0f', millis)
    local channel = string.match(who, '^%S+')
    redis.call('HSET', queue, 'w' .. client, string.format('%s %.0f %s', since, millis, channel))
    keep_queue(queue, LINGER)
  end
  return {
    0, last_of(known), micros, redis.call('PTTL', lock),
    type(value) == 'string' and value or '', known,
  }
end

for _, i in ipairs(others) do
  local record, lock, queue = KEYS[i + 1], KEYS[count + 1 + i], KEYS[2 * count + 1 + i]
  local owner, guess = ARGV[2 * i + 3], ARGV[2 * i + 4]
  local ttl, waits = common or ARGV[2 * count + 2 * i + 3], ARGV[4]
  if not common then
    waits = ARGV[2 * count + 2 * i + 4]
  end
  if redis.call('EXISTS', lock, queue) == 0 then
    answers[i] = take(lock, record, owner, ttl, guess)
  else
    answers[i] = contend(lock, record, queue, owner, ttl, waits, guess)
  end
end
return answers

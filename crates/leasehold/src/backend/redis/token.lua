-- Tokens, and the record that remembers the last one of a lock:
--   <token> <since, in µs> <owner> <channel> <holder>
-- A record outlives the moment at which the clock passes its token: when it is gone, the
-- clock alone gives a higher one. (%.0f, because Lua itself prints 1.7e+15.)
local RETENTION = 3600000

local function token_of(record)
  return record and tonumber(string.match(record, '^%d+')) or 0
end

local function owner_of(record)
  return record and string.match(record, '^%d+ %d+ (%S+)')
end

local function next_token(last)
  local token = last + 1
  -- A clock after the year 2112 is not believed: it would use up the range.
  if micros > token and micros < 4503599627370496 then
    token = micros
  end
  if token > 9007199254740991 then
    error('no token is left for this lock')
  end
  return token
end

local function lifetime(token, ttl)
  local ahead = math.max(0, token / 1000 - millis)
  return string.format('%.0f', math.max(RETENTION, 2 * ttl) + ahead)
end

local function remember(record, token, owner, channel, holder, ttl)
  local text = string.format('%.0f %.0f %s %s %s', token, micros, owner, channel, holder)
  redis.call('SET', record, text, 'PX', lifetime(token, ttl))
end

-- The token of an owner that has the lock. Where its record was lost, nobody can have
-- been told it yet, or whoever was told asks with it: a fresh one is as good.
local function token_held(record, owner, channel, holder, ttl)
  local known = redis.call('GET', record)
  if owner_of(known) == owner then
    return token_of(known)
  end
  local token = next_token(token_of(known))
  remember(record, token, owner, channel, holder, ttl)
  return token
end

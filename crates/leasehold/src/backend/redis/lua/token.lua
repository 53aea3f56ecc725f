-- Tokens, and the record that remembers the last one of a lock:
--   <token> <since, in µs> <owner> <channel> <holder>
-- A record outlives the moment at which the clock passes its token: when it is gone, the
-- clock alone gives a higher one. (%.0f, because Lua itself prints 1.7e+15.)
local RETENTION = @RETENTION@

local function token_of(record)
  return record and tonumber(string.match(record, '^%d+')) or 0
end

local function next_token(last)
  -- A clock after the year 2112 is not believed: it would use up the range.
  if micros > last and micros < @LATEST@ then
    return micros
  end
  if last >= 9007199254740991 then
    error('no token is left for this lock')
  end
  return last + 1
end

local function lifetime(token, ttl)
  local keep = math.max(RETENTION, 2 * ttl)
  local ahead = token / 1000 - millis
  if ahead > 0 then
    keep = keep + ahead
  end
  return string.format('%.0f', keep)
end

-- `who` is its channel and holder.
local function remember(record, token, owner, who, ttl)
  local text = string.format('%.0f %.0f %s %s', token, micros, owner, who)
  call('SET', record, text, 'PX', lifetime(token, ttl))
end

-- Tokens, and the record that remembers the last one of a lock:
--   <token> <since, in µs> <owner of the attempt> <channel> <holder>
-- A record outlives the moment at which the clock passes its token by an hour.
local RETENTION = 3600000
local MOST = 9007199254740991

-- The last token. Where its record has expired, one that it cannot have been above stands
-- for it: a guess by a clock that is hours behind must not bring an old one back.
local function last_of(known)
  local last = known and tonumber(string.match(known, '^%d+'))
    or math.min(ceiling, micros - 1000 * RETENTION)
  return math.max(last, floor)
end

local function lifetime(token, ttl)
  local keep = math.max(RETENTION, 2 * ttl)
  if token > micros then
    keep = keep + token / 1000 - millis
  end
  return string.format('%.0f', keep)
end

-- Keeps a token if it is new. The same one of the same owner again is a resend.
local function keep(record, known, owner, token, ttl, who)
  local last = last_of(known)
  if token > last and token <= MOST then
    raise(ttl, token)
    local text = string.format('%.0f %.0f %s %s', token, micros, owner, who)
    redis.call('SET', record, text, 'PX', lifetime(token, ttl))
    return true
  end
  return token == last and known and string.match(known, '^%d+ %d+ (%S+)') == owner
end

-- Part of every script that votes: only a node that has kept its data may, for a client
-- with the same list of nodes, that knows of the last recovery.
--   member|joining <list> <epoch> <longest TTL, in ms> <ceiling> <floor>
-- No token here was ever above the ceiling; no lock here was ever told a token below the
-- floor. (%.0f, because Lua itself prints 1.7e+15.)
local marker = redis.call('GET', KEYS[1])
local expected = ARGV[1]
if not marker or string.sub(marker, 1, #expected) ~= expected then
  return marker or ''
end
local longest, ceiling, floor = string.match(marker, '^(%d+) (%d+) (%d+)', #expected + 1)
longest, ceiling, floor = tonumber(longest), tonumber(ceiling), tonumber(floor)

-- The ceiling leads by a second, so that it seldom has to be written.
local LEAD = 1000000

-- Before anything is granted: for how long at most, and with which token at most.
local function heed(ttl, token)
  if ttl <= longest and token <= ceiling then
    return
  end
  longest = math.max(longest, ttl)
  if token > ceiling then
    ceiling = token + LEAD
  end
  redis.call('SET', KEYS[1],
    string.format('%s%.0f %.0f %.0f', expected, longest, ceiling, floor))
end

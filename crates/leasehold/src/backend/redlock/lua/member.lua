-- Part of every script that votes: only a node that has kept its data may, for a client
-- with the same list of nodes, that knows of the last recovery.
--   member|joining|restarted <list> <epoch> <longest TTL, in ms> <ceiling> <floor> <run id>+|-
-- The run id is that of the server's process, with + if it syncs every write. No token here was ever above the ceiling; no lock here was ever told a token below the
-- floor. (%.0f, because Lua itself prints 1.7e+15.)
local marker = redis.call('GET', KEYS[1])
local expected = ARGV[1]
if not marker or string.sub(marker, 1, #expected) ~= expected then
  return marker or ''
end
local longest, ceiling, floor = string.match(marker, '^(%d+) (%d+) (%d+)', #expected + 1)
longest, ceiling, floor = tonumber(longest), tonumber(ceiling), tonumber(floor)

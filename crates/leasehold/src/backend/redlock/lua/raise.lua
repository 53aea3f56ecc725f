-- The ceiling leads by a second, so that it seldom has to be written.
local LEAD = 1000000

-- Before anything is granted: for how long at most, and with which token at most.
local function raise(ttl, token)
  if ttl <= longest and token <= ceiling then
    return
  end
  longest = math.max(longest, ttl)
  if token > ceiling then
    ceiling = token + LEAD
  end
  local run = string.match(marker, '^%d+ %d+ %d+(.*)$', #expected + 1)
  redis.call('SET', KEYS[1],
    string.format('%s%.0f %.0f %.0f%s', expected, longest, ceiling, floor, run))
end

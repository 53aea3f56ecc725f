-- Who waits for a lock, and who was given up, one hash:
--   w<owner>    <since, in ms> <seen, in ms> <channel>
--   b<owner>    until when nothing is granted to this owner, in ms
-- A waiter that was not seen for PATIENCE is skipped.
local PATIENCE = 3000
local LINGER = 60000

local function line_clock()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

local function keep_line(line, at_least)
  if redis.call('PTTL', line) < at_least then
    redis.call('PEXPIRE', line, string.format('%.0f', at_least))
  end
end

-- Tells the one that has waited longest that the lock is free: the next one, if nobody hears it.
local function wake(line)
  local now = line_clock()
  local fields = redis.call('HGETALL', line)
  local heard = false
  while not heard do
    local first, at, where
    for i = 2, #fields, 2 do
      local since, seen, channel = string.match(fields[i], '^(%d+) (%d+) (%S+)$')
      if since and math.abs(now - seen) < PATIENCE then
        since = tonumber(since)
        if not first or since < first then
          first, at, where = since, i, channel
        end
      end
    end
    if not first then
      return
    end
    heard = redis.call('PUBLISH', where, 'f ' .. string.sub(fields[at - 1], 2)) > 0
    fields[at] = ''
  end
end

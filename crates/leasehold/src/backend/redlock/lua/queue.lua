-- Who waits for a lock, and who was given up, one hash:
--   w<owner>    <since, in ms> <seen, in ms> <channel>
--   b<owner>    until when nothing is granted to this owner, in ms
-- A waiter that was not seen for PATIENCE is skipped.
local PATIENCE = 3000
local LINGER = 60000

local function queue_clock()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

local function keep_queue(queue, at_least)
  if redis.call('PTTL', queue) < at_least then
    redis.call('PEXPIRE', queue, string.format('%.0f', at_least))
  end
end

-- Tells the one that has waited longest that the lock is free: the next one, if nobody hears it.
local function wake(queue)
  local now = queue_clock()
  local fields = redis.call('HGETALL', queue)
  local waiters = {}
  for i = 1, #fields, 2 do
    local since, seen, channel = string.match(fields[i + 1], '^(%d+) (%d+) (%S+)$')
    if since and math.abs(now - seen) < PATIENCE then
      local who = string.sub(fields[i], 2)
      local at = #waiters + 1
      waiters[at] = { since = tonumber(since), at = at, who = who, channel = channel }
    end
  end
  table.sort(waiters, function(one, other)
    if one.since ~= other.since then
      return one.since < other.since
    end
    return one.at < other.at
  end)
  local deaf = {}
  for _, waiter in ipairs(waiters) do
    if not deaf[waiter.channel] then
      if redis.call('PUBLISH', waiter.channel, 'f ' .. waiter.who) > 0 then
        return
      end
      deaf[waiter.channel] = true
    end
  end
end

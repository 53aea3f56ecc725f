-- The line of a lock, a list; each in it:
--   <owner, 32 digits> <seen, in ms> <number> <ttl> <channel> <holder>
-- A waiter without a heartbeat for PATIENCE is skipped. A grant that is pushed lasts no
-- longer than that, so that one to a waiter whose machine just died costs little.
local PATIENCE = 3000
local LINGER = 3600000

-- How many hear it.
local function publish(channel, message)
  -- `S:` a channel of the lock's shard in a cluster, `P:` one of the server.
  local command = string.byte(channel) == 83 and 'SPUBLISH' or 'PUBLISH'
  return call(command, string.sub(channel, 3), message)
end

-- Where somebody stands, from 0 on, or nil, and how it is written there. `said` is what its
-- client was told last: when it was seen, and with which number. If that is right, so is the
-- whole of what is looked for. Otherwise everybody is looked at, and a line may be long.
local function place_of(line, owner, said, ttl, who)
  if said ~= '' then
    local waiter = owner .. ' ' .. said .. ' ' .. ttl .. ' ' .. who
    local place = call('LPOS', line, waiter)
    if place then
      return place, waiter
    end
  end
  for i, waiter in ipairs(call('LRANGE', line, 0, -1)) do
    if string.sub(waiter, 1, 32) == owner then
      return i - 1, waiter
    end
  end
end

-- Somebody is there: at this place, or at the end. The place, and when it was seen.
local function stand(line, place, owner, number, ttl, who)
  local seen = string.format('%.0f', millis)
  local waiter = owner .. ' ' .. seen .. ' ' .. number .. ' ' .. ttl .. ' ' .. who
  if place then
    call('LSET', line, place, waiter)
  else
    place = call('RPUSH', line, waiter) - 1
  end
  call('PEXPIRE', line, LINGER)
  return place, seen
end

local function step_out(line, owner, said, ttl, who)
  local place, waiter = place_of(line, owner, said, ttl, who)
  if place then
    call('LREM', line, 1, waiter)
  end
end

-- Grants a free lock to its first live waiter and tells it: its owner and token, or nil.
-- `asks` is who wants to know, and hears the answer; `last` is the lock's last token, where it
-- is known. Whom no message reaches has lost its connection, and perhaps its life: it keeps its
-- place, but nobody waits for it.
local function serve(lock, record, line, asks, last)
  local owner, token
  local unheard = {}
  while not owner do
    local waiter = call('LPOP', line)
    if not waiter then
      break
    end
    local its, seen, number, ttl, who, channel =
      string.match(waiter, '^(%S+) (%d+) (%d+) (%d+) ((%S+) .*)$')
    if math.abs(millis - seen) < PATIENCE then
      local term = math.min(ttl, PATIENCE)
      local next = next_token(last or token_of(call('GET', record)))
      local heard = publish(channel, string.format('g %s %.0f %s %d', its, next, number, term))
      if heard > 0 or its == asks then
        call('SET', lock, its, 'PX', term)
        remember(record, next, its, who, ttl)
        owner, token = its, next
      else
        unheard[#unheard + 1] = waiter
      end
    else
      -- It lost its place, but may only be slow: it asks again.
      publish(channel, 'a ' .. its)
    end
  end
  for i = #unheard, 1, -1 do
    call('LPUSH', line, unheard[i])
    call('PEXPIRE', line, LINGER)
  end
  return owner, token
end

-- The line of a lock, a list; each in it:
--   <owner, 32 digits> <seen, in ms> <number> <ttl> <channel> <holder>
-- A waiter without a heartbeat for PATIENCE is skipped. A grant that is pushed lasts no
-- longer than that, so that one to a waiter whose machine just died costs little.
-- (The parts of scripts for what is common have these numbers as well.)
local PATIENCE = 3000
local LINGER = 3600000

-- `S:` is a channel of the lock's shard in a cluster, `P:` one of the server.
local function publish(channel, message)
  local command = string.byte(channel) == 83 and 'SPUBLISH' or 'PUBLISH'
  call(command, string.sub(channel, 3), message)
end

-- Whether anybody listens there, on a connection to this server. (Who published to it and counted
-- would not know: replicas and other nodes of a cluster pass messages on.) A user who may not ask
-- is told yes.
local function is_heard(channel)
  local what = string.byte(channel) == 83 and 'SHARDNUMSUB' or 'NUMSUB'
  local heard = redis.pcall('PUBSUB', what, string.sub(channel, 3))[2]
  return heard ~= 0
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

-- Whether a waiter that was seen then is worth a grant. One that missed its heartbeats for a
-- whole TTL, and has no connection any more, is dead: a grant to it would cost the others a term,
-- and many may die together.
local function lives(seen, ttl, channel)
  local quiet = math.abs(millis - seen)
  return quiet < PATIENCE and (quiet < tonumber(ttl) or is_heard(channel))
end

-- Grants a free lock to its first live waiter and tells it: its owner and token, or nil.
-- `last` is the lock's last token, where it is known.
local function serve(lock, record, line, last)
  while true do
    local waiter = call('LPOP', line)
    if not waiter then
      return nil
    end
    local owner, seen, number, ttl, who, channel =
      string.match(waiter, '^(%S+) (%d+) (%d+) (%d+) ((%S+) .*)$')
    if lives(seen, ttl, channel) then
      local term = math.min(ttl, PATIENCE)
      local token = next_token(last or token_of(call('GET', record)))
      call('SET', lock, owner, 'PX', term)
      remember(record, token, owner, who, ttl)
      publish(channel, string.format('g %s %.0f %s %d', owner, token, number, term))
      return owner, token
    end
    -- It lost its place, but may only be slow: it asks again.
    publish(channel, 'a ' .. owner)
  end
end

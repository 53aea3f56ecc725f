-- The queue of a lock, a list; each in it:
--   <owner, 32 digits> <seen, in ms> <number> <ttl> <channel> <holder>
-- A waiter without a heartbeat for PATIENCE is skipped. A grant that is pushed lasts no
-- longer than that, so that one to a waiter whose machine just died costs little.
-- (The parts of scripts for what is common have these numbers as well.)
local PATIENCE = @PATIENCE@
local LINGER = @LINGER@

-- Killed clients leave their waiters behind, perhaps a hundred thousand of them. One call takes
-- at most so many waiters out of queues, and FEWEST of each: a server does nothing else meanwhile,
-- and the dead in one queue do not hold up the other locks of the call.
local LOOKS = 1000
local FEWEST = 8
local looks = LOOKS
-- In a queue that is longer than LONG, whoever comes or shows itself looks at SWEPT others, and
-- takes those out that have been silent for GONE. (Not for PATIENCE: one that was only paused
-- keeps its place, unless its turn comes.)
local LONG = @LONG@
local SWEPT = 32
local GONE = 30000

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
-- whole of what is looked for. Otherwise everybody is looked at, and a queue may be long.
local function place_of(queue, owner, said, ttl, who)
  if said ~= '' then
    local waiter = owner .. ' ' .. said .. ' ' .. ttl .. ' ' .. who
    local place = call('LPOS', queue, waiter)
    if place then
      return place, waiter
    end
  end
  for i, waiter in ipairs(call('LRANGE', queue, 0, -1)) do
    if string.sub(waiter, 1, 32) == owner then
      return i - 1, waiter
    end
  end
end

-- Looks at some of the first `count` in the queue, others each time, and takes those out that have
-- been silent for long.
local function sweep(queue, count)
  if count <= LONG then
    return
  end
  local first = micros % count
  local gone = 0
  for i, waiter in ipairs(call('LRANGE', queue, first, first + SWEPT - 1)) do
    local owner, seen, channel = string.match(waiter, '^(%S+) (%d+) %d+ %d+ (%S+)')
    if seen and math.abs(millis - seen) >= GONE then
      publish(channel, 'a ' .. owner)
      -- All of them go in one pass below: LREM walks from the head to each that it removes.
      call('LSET', queue, first + i - 1, '')
      gone = gone + 1
    end
  end
  if gone > 0 then
    call('LREM', queue, gone, '')
  end
end

-- Somebody is there: at this place, or at the end. The place, and when it was seen.
local function stand(queue, place, owner, number, ttl, who)
  local seen = string.format('%.0f', millis)
  local waiter = @WAITER@
  if place then
    call('LSET', queue, place, waiter)
  else
    place = call('RPUSH', queue, waiter) - 1
  end
  call('PEXPIRE', queue, LINGER)
  sweep(queue, place)
  return place, seen
end

local function step_out(queue, owner, said, ttl, who)
  local place, waiter = place_of(queue, owner, said, ttl, who)
  if place then
    call('LREM', queue, 1, waiter)
  end
end

-- Whether a waiter that was seen then is worth a grant. One that missed its heartbeats for a
-- whole TTL, and has no connection any more, is dead: a grant to it would cost the others a term,
-- and many may die together.
local function lives(seen, ttl, channel)
  local quiet = math.abs(millis - seen)
  return quiet < PATIENCE and (quiet < tonumber(ttl) or is_heard(channel))
end

-- Whether nobody in the queue has been seen for PATIENCE, without a look at each of them:
-- heartbeats extend the life of the queue, and whoever has not sent one yet came no later than
-- the last.
local function is_deserted(queue)
  local left = call('PTTL', queue)
  if left < 0 or LINGER - left < PATIENCE then
    return left == -2
  end
  local seen = string.match(call('LRANGE', queue, -1, -1)[1], '^%S+ (%d+)')
  return seen and math.abs(millis - seen) >= PATIENCE
end

-- Grants a free lock to its first live waiter and tells it: its owner; nil if nobody lives; false
-- if the call has done enough, and there may be one behind the dead. Then the lock stays free,
-- the next who come queue, and live waiters ask again soon.
-- `last` is the lock's last token, where it is known.
local function serve(lock, record, queue, last)
  looks = math.max(looks, FEWEST)
  while looks > 0 do
    local waiter = call('LPOP', queue)
    if not waiter then
      return nil
    end
    looks = looks - 1
    local owner, seen, number, ttl, who, channel =
      string.match(waiter, '^(%S+) (%d+) (%d+) (%d+) ((%S+) .*)$')
    if lives(seen, ttl, channel) then
      local term = math.min(ttl, PATIENCE)
      local token = next_token(last or token_of(call('GET', record)))
      call('SET', lock, owner, 'PX', term)
      remember(record, token, owner, who, ttl)
      publish(channel, string.format('g %s %.0f %s %d', owner, token, number, term))
      return owner
    end
    -- It lost its place, but may only be slow: it asks again.
    publish(channel, 'a ' .. owner)
  end
  if not is_deserted(queue) then
    return false
  end
  -- Those that are only slow learn of it by their next heartbeat.
  call('DEL', queue)
  return nil
end

-- The line of a lock, one hash:
--   h, t        the first place and the one after the last
--   <place>     <owner> <seen, in ms> <number> <ttl> <channel> <holder>
--   <owner>     its place
--   b<owner>    until when this owner is barred, in ms
--   x           until when the hash must live, in ms
-- A waiter without a heartbeat for PATIENCE is skipped. A grant that is pushed lasts no
-- longer than that, so that one to a waiter who just died costs little.
local PATIENCE = 3000
local LINGER = 60000

local function publish(channel, message)
  -- `S:` a channel of the lock's shard in a cluster, `P:` one of the server.
  local command = string.byte(channel) == 83 and 'SPUBLISH' or 'PUBLISH'
  call(command, string.sub(channel, 3), message)
end

local function keep_line(line, until_then)
  call('PEXPIRE', line, string.format('%.0f', math.max(1, until_then - millis)))
end

-- Takes a place, or keeps the one it has; whether that is the first.
local function stand(line, owner, number, ttl, who)
  local known = call('HMGET', line, owner, 'h', 't', 'x')
  local waiter = string.format('%s %.0f %s %s %s', owner, millis, number, ttl, who)
  local until_then = math.max(tonumber(known[4]) or 0, millis + LINGER)
  local x = string.format('%.0f', until_then)
  local place, first = known[1], known[2]
  if place then
    call('HSET', line, place, waiter, 'x', x)
  else
    place = known[3] or '0'
    first = first or place
    call('HSET', line, 'h', first, 't', place + 1, place, waiter, owner, place, 'x', x)
  end
  keep_line(line, until_then)
  return place == first
end

-- The first place is now the first from this one on that somebody has (who left the line
-- left a gap); a line that holds nothing else is gone.
local function advance(line, first, last)
  while first < last and call('HEXISTS', line, first) == 0 do
    first = first + 1
  end
  if first >= last and call('HLEN', line) <= 3 then
    call('DEL', line)
  else
    call('HSET', line, 'h', first)
  end
end

local function step_out(line, owner)
  local known = call('HMGET', line, owner, 'h', 't')
  local place = tonumber(known[1])
  if not place then
    return
  end
  call('HDEL', line, place, owner)
  local first, last = tonumber(known[2]), tonumber(known[3])
  if place == first then
    advance(line, first + 1, last)
  end
end

-- Grants a free lock to its first live waiter and tells it: its owner and token, or nil.
-- `last` is the lock's last token, where it is known.
local function serve(lock, record, line, last)
  local ends = call('HMGET', line, 'h', 't')
  local place, past = tonumber(ends[1]), tonumber(ends[2])
  if not place then
    return nil
  end
  while place < past do
    local waiter = call('HGET', line, place)
    place = place + 1
    if waiter then
      local owner, seen, number, ttl, who, channel =
        string.match(waiter, '^(%S+) (%d+) (%d+) (%d+) ((%S+) .*)$')
      call('HDEL', line, place - 1, owner)
      if math.abs(millis - seen) < PATIENCE then
        local term = math.min(ttl, PATIENCE)
        local token = next_token(last or token_of(call('GET', record)))
        call('SET', lock, owner, 'PX', term)
        remember(record, token, owner, who, ttl)
        advance(line, place, past)
        publish(channel, string.format('g %s %.0f %s %d', owner, token, number, term))
        return owner, token
      end
      -- It lost its place, but may only be slow: it asks again.
      publish(channel, 'a ' .. owner)
    end
  end
  advance(line, place, past)
  return nil
end

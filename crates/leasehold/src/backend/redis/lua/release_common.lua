-- Gives each lock back, if it is still the owner's, and lets its next waiter in.
-- KEYS  for each hold: lock, record, queue
-- ARGV  for each hold: owner, token
-- Answers for each hold: 1 released, 0 not held.
--
-- This part does what is common: nobody waits, or the first in the queue was just seen. It defines
-- nothing, and compares times as texts of one length: functions and numbers would cost more
-- than the work. What can be asked about all holds at once is, as a call costs more than what
-- it does. What is left goes to the rest of the script.
local call = redis.call
local answers = {}
local count = #KEYS / 3
if count > 1 then
  local locks, queues = {}, {}
  for i = 1, count do
    locks[i], queues[i] = KEYS[3 * i - 2], KEYS[3 * i]
  end
  if call('EXISTS', unpack(queues)) == 0 then
    -- A key of another type holds nothing here.
    local known = call('MGET', unpack(locks))
    local held = {}
    for i = 1, count do
      if known[i] == ARGV[2 * i - 1] then
        held[#held + 1] = locks[i]
        answers[i] = 1
      else
        answers[i] = 0
      end
    end
    if #held > 0 then
      call('DEL', unpack(held))
    end
    return answers
  end
end
local sub, find, byte = string.sub, string.find, string.byte
local others, second, now
for i = 1, count do
  local lock, queue = KEYS[3 * i - 2], KEYS[3 * i]
  local answer
  if redis.pcall('GET', lock) ~= ARGV[2 * i - 1] then
    answer = 0
  else
    local waiter = call('LPOP', queue)
    if not waiter then
      call('DEL', lock)
      answer = 1
    else
      -- What `serve` of queue.lua does, where nothing is special.
      if not now then
        local time = call('TIME')
        local rest = time[2]
        if #rest < 6 then
          rest = string.rep('0', 6 - #rest) .. rest
        end
        -- The clock in µs: 16 digits until the year 2286.
        second, now = time[1], time[1] .. rest
      end
      -- <owner, 32 digits> <seen, 13> <number> <ttl> <channel> <holder>
      local numbered = find(waiter, ' ', 48, true)
      local lives = numbered and find(waiter, ' ', numbered + 1, true)
      local listens = lives and find(waiter, ' ', lives + 1, true)
      local ttl, token = listens and sub(waiter, numbered + 1, lives - 1), ARGV[2 * i]
      -- A TTL of six digits is less than half of what a record is kept for at least; one of
      -- four is not over within the second in which its waiter was seen.
      if ttl and #ttl > 3 and #ttl < 7 and #now == 16 and now < '@LATEST@'
        and #token == 16 and token < now
        and byte(waiter, 33) == 32 and byte(waiter, 47) == 32
        and (sub(waiter, 34, 43) == second
          or math.abs(sub(now, 1, 13) - (tonumber(sub(waiter, 34, 46)) or 0)) < 1000)
      then
        local owner = sub(waiter, 1, 32)
        local term = (#ttl > 4 or ttl > '@PATIENCE@') and '@PATIENCE@' or ttl
        call('SET', lock, owner, 'PX', term)
        call('SET', KEYS[3 * i - 1], now .. ' ' .. now .. ' ' .. owner .. sub(waiter, lives),
          'PX', '@RETENTION@')
        -- `S:` a channel of the lock's shard in a cluster, `P:` one of the server.
        call(byte(waiter, lives + 1) == 83 and 'SPUBLISH' or 'PUBLISH',
          sub(waiter, lives + 3, listens - 1),
          'g ' .. owner .. ' ' .. now .. sub(waiter, 47, numbered) .. term)
        answer = 1
      else
        -- As if nobody had looked. (When it is the last, the queue was gone for a moment, and
        -- with it the time that it has left. Otherwise that tells when the last heartbeat was.)
        if call('LPUSH', queue, waiter) == 1 then
          call('PEXPIRE', queue, '@LINGER@')
        end
      end
    end
  end
  if answer then
    answers[i] = answer
  else
    others = others or {}
    others[#others + 1] = i
  end
end
if not others then
  return answers
end

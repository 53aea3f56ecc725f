-- Takes each lock that is free; where a claim asks to queue, takes a place in its queue.
-- KEYS  for each claim: lock, record, queue, tombstone
-- ARGV  channel and holder; for each claim: owner, ttl in ms, number, or 0 not to queue, and
--       when it was seen in the queue last and with which number ('0 0' if it may be there, but
--       does not know), or '' if it never was (an owner that says so while it is in the queue
--       would be there twice)
-- Answers for each claim: the token, or {0 held, -1, what the lock key holds, the record}, or
-- {1 queued, left in ms if it should look then (as the first in the queue does) or -1, those two,
-- when it was seen}; in place of -1 or what is left -3, if the lock's key never expires.
--
-- This part does what is common: a lock that is free and had no queue, a newcomer to the
-- queue of one that is held. It defines nothing, and compares times as texts of one length:
-- functions and numbers would cost more than the work. What can be asked about all claims
-- at once is, as a call costs more than what it does. What is left goes to the rest of the
-- script.
local call, sub, byte = redis.call, string.sub, string.byte
local time = call('TIME')
local second, rest = time[1], time[2]
if #rest < 6 then
  rest = string.rep('0', 6 - #rest) .. rest
end
-- The clock in µs: 16 digits until the year 2286.
local now = second .. rest
local usual = #now == 16 and now < '@LATEST@'
local who = ARGV[1]
local count = #KEYS / 4
-- What all locks, records and tombstones hold (a key of another type: nothing), and whether nobody
-- has a queue.
local known, queues, no_queues, token
if count == 1 then
  known = call('MGET', KEYS[1], KEYS[2], KEYS[4])
else
  local keys = {}
  queues = {}
  for i = 1, count do
    local at = 4 * i
    keys[3 * i - 2], keys[3 * i - 1], keys[3 * i] = KEYS[at - 3], KEYS[at - 2], KEYS[at]
    queues[i] = KEYS[at - 1]
  end
  known = call('MGET', unpack(keys))
end
local answers = {}
local others, long
for i = 1, count do
  local lock, record, queue = KEYS[4 * i - 3], KEYS[4 * i - 2], KEYS[4 * i - 1]
  local owner, ttl, number = ARGV[4 * i - 2], ARGV[4 * i - 1], ARGV[4 * i]
  local value, last = known[3 * i - 2], known[3 * i - 1]
  local answer
  if not usual or known[3 * i] then
    answer = nil
  elseif not value then
    if queues and no_queues == nil then
      no_queues = call('EXISTS', unpack(queues)) == 0
    end
    -- A TTL of six digits is less than half of what a record is kept for at least. (What
    -- is set only if it is not there needs no look at its type.)
    if #ttl < 7 and (not last or byte(last, 17) == 32 and sub(last, 1, 16) < now)
      and (no_queues or call('EXISTS', queue) == 0)
      and call('SET', lock, owner, 'PX', ttl, 'NX')
    then
      call('SET', record, now .. ' ' .. now .. ' ' .. owner .. ' ' .. who, 'PX', '@RETENTION@')
      token = token or tonumber(now)
      answer = token
    end
  elseif value == owner then
    answer = nil
  elseif number == '0' then
    -- A key that is not ours may have no end: the rest of the script looks.
    if last and sub(last, 35, 66) == value then
      answer = { 0, -1, value, last }
    end
  elseif ARGV[4 * i + 1] == '' then
    -- What `stand` of queue.lua does. Of those who stay for a moment only some extend the life
    -- of the queue and look for dead ones in a long one, chosen by their owner's last digit, which
    -- is random; the others do with their heartbeats.
    local seen = sub(now, 1, 13)
    local place = call('RPUSH', queue,
      @WAITER@)
    if place == 1 or byte(owner, 32) == 48 then
      call('PEXPIRE', queue, '@LINGER@')
      if place > @LONG@ then
        long = long or {}
        long[queue] = place
      end
    end
    local left = -1
    if place == 1 then
      left = call('PTTL', lock)
      if left == -1 then
        left = -3
      end
    end
    answer = { 1, left, value, last or '', seen }
  end
  if answer then
    answers[i] = answer
  else
    others = others or {}
    others[#others + 1] = i
  end
end
if not others and not long then
  return answers
end
others, long = others or {}, long or {}
local micros = tonumber(now)
local millis = math.floor(micros / 1000)

-- What a node is to its clients, step by step (`docs/backends/redlock.md`). Every step looks
-- at the marker it finds, and answers the one it leaves, with the node's clock in µs.
-- KEYS  marker
-- ARGV  step, list, + if the server syncs every write before it answers and - if not; for seal,
--       install and readmit: epoch; for install: longest TTL, floor
-- look      changes nothing
-- arrive    comes first on every connection: a server that has been restarted may have come back
--           with older data; unless it syncs every write, and did, it does not vote
-- notice    a node that knows nothing hears of its list; it does not vote yet
-- found     a node that was given notice begins to vote
-- seal      a voter refuses older epochs from now on
-- install   a node that knows nothing or too little, or waits for an older epoch, is told where
--           to go on; it does not vote yet
-- readmit   a node that waits in this epoch votes again, when the longest TTL has passed since it
--           was told where to go on, by its own clock
local step, list, keeps, epoch = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local marker = redis.call('GET', KEYS[1])
local time = redis.call('TIME')
local micros = time[1] * 1000000 + time[2]
-- Each start of a server has a run id of its own.
local run = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
local status, its_list, its_epoch, rest
if marker then
  status, its_list, its_epoch, rest = string.match(marker, '^(%a+) (%S+) ?(%d*) ?(.*)$')
  its_epoch = tonumber(its_epoch) or 0
end
-- The longest TTL, in ms, and what clocks may differ in their pace: in µs.
local function wait_out(longest)
  return longest == 0 and 0 or longest * 1020 + 10000
end
local done = 0
local function become(text)
  redis.call('SET', KEYS[1], text)
  marker = text
  done = 1
end
-- The marker is of    and it kept  this run keeps  then
-- this run            -            + or -          nothing changes
-- this run            +            -               it does not keep everything any more
-- another run         +            +               nothing is lost, it goes on as what it was
-- another run         anything else                it does not vote
local function arrive()
  local figures, its_run, kept, since =
    string.match(rest or '', '^(%d+ %d+ %d+) ?(%x*)([+-]?)( ?%d*)$')
  local same = its_run == run
  if not figures or (same and (kept == '-' or keeps == '+')) then
    return
  end
  local whole = same or (kept == '+' and keeps == '+')
  become(string.format('%s %s %.0f %s %s%s%s', whole and status or 'restarted',
    its_list, its_epoch, figures, run, keeps, whole and since or ''))
end
if step == 'arrive' then
  arrive()
elseif step == 'notice' then
  if not marker then
    become('noticed ' .. list)
  end
elseif marker and its_list ~= list then
  done = 0
elseif step == 'found' then
  if status == 'noticed' then
    become(string.format('member %s 0 0 0 0 %s%s', list, run, keeps))
  end
elseif step == 'seal' then
  if status == 'member' and epoch > its_epoch then
    become(string.format('member %s %.0f %s', list, epoch, rest))
  end
elseif step == 'install' then
  -- One that has heard of no epoch yet is in the first, 0.
  if status ~= 'member' and epoch > (its_epoch or 0) then
    become(string.format('joining %s %.0f %s %s %s %s%s %.0f',
      list, epoch, ARGV[5], ARGV[6], ARGV[6], run, keeps, micros))
  end
elseif step == 'readmit' then
  if status == 'joining' and epoch == its_epoch then
    local figures, since = string.match(rest, '^(.*) (%d+)$')
    local longest = tonumber(string.match(rest, '^%d+'))
    since = tonumber(since)
    if since > micros then
      -- Its clock was set back: nobody knows for how long it has waited.
      become(string.format('joining %s %.0f %s %.0f', list, epoch, figures, micros))
      done = 0
    elseif micros - since >= wait_out(longest) then
      become(string.format('member %s %.0f %s', list, epoch, figures))
    end
  end
end
return { done, marker or '', micros }

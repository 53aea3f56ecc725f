-- What a node is to its clients, step by step (`docs/backends/redlock.md`). Every step looks
-- at the marker it finds, and answers the one it leaves, with the node's clock in µs.
-- KEYS  marker
-- ARGV  step, list; for seal, install and readmit: epoch; for install: longest TTL, floor
-- look      changes nothing
-- notice    a node that knows nothing hears of its list; it does not vote yet
-- found     a node that was given notice begins to vote
-- seal      a voter refuses older epochs from now on
-- install   a node that knows nothing, or waits for an older epoch, is told where to go on;
--           it does not vote yet
-- readmit   a node that waits in this epoch votes again
local step, list, epoch = ARGV[1], ARGV[2], tonumber(ARGV[3])
local marker = redis.call('GET', KEYS[1])
local time = redis.call('TIME')
local standing, its_list, its_epoch, rest
if marker then
  standing, its_list, its_epoch, rest = string.match(marker, '^(%a+) (%S+) ?(%d*) ?(.*)$')
  its_epoch = tonumber(its_epoch) or 0
end
local done = 0
local function become(text)
  redis.call('SET', KEYS[1], text)
  marker = text
  done = 1
end
if step == 'notice' then
  if not marker then
    become('noticed ' .. list)
  end
elseif marker and its_list ~= list then
  done = 0
elseif step == 'found' then
  if standing == 'noticed' then
    become(string.format('member %s 0 0 0 0', list))
  end
elseif step == 'seal' then
  if standing == 'member' and epoch > its_epoch then
    become(string.format('member %s %.0f %s', list, epoch, rest))
  end
elseif step == 'install' then
  local empty = not marker or standing == 'noticed'
  if (empty and epoch > 0) or (standing == 'joining' and epoch > its_epoch) then
    become(string.format('joining %s %.0f %s %s %s', list, epoch, ARGV[4], ARGV[5], ARGV[5]))
  end
elseif step == 'readmit' then
  if standing == 'joining' and epoch == its_epoch then
    become(string.format('member %s %.0f %s', list, epoch, rest))
  end
end
return { done, marker or '', time[1] * 1000000 + time[2] }

-- Gives each lock back, if it is still the owner's, and tells who waits for it.
-- KEYS  marker; each lock; the queue of each
-- ARGV  how the marker begins, 1 to tell who waits or 0; for each hold: owner
-- Answers the marker if it is another. Otherwise how many holds there were, if all are
-- released. Otherwise for each hold: 1 released, 0 not held.
--
-- This part does what is common: all are still their owners', and nobody waits. It defines
-- nothing, which would cost more than the work, and asks about all locks at once. What is
-- left goes to the rest of the script.
local call = redis.call
local count = (#KEYS - 1) / 2
-- A key of another type holds nothing here.
local values = call('MGET', unpack(KEYS, 1, count + 1))
local marker, expected = values[1], ARGV[1]
if not marker or string.sub(marker, 1, #expected) ~= expected then
  return marker or ''
end
local common = true
for i = 1, count do
  local value, owner = values[i + 1], ARGV[i + 2]
  common = common and value and string.sub(value, 1, #owner) == owner
end
if common and
  (ARGV[2] == '0' or call('EXISTS', unpack(KEYS, count + 2, 2 * count + 1)) == 0)
then
  call('DEL', unpack(KEYS, 2, count + 1))
  return count
end

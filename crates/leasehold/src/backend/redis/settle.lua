-- After claims without an answer: is it mine? If not, the owner leaves the line and is
-- barred, so that a claim that is still on its way takes nothing.
-- KEYS  for each claim: lock, record, line
-- ARGV  channel and holder; for each claim: owner, ttl in ms, for how long to bar in ms
-- Answers for each claim: the token, or 0.
local who = ARGV[1]

-- Bars of a line that is never idle would pile up.
local function sweep(line)
  if call('HLEN', line) < 4096 then
    return
  end
  local fields = call('HGETALL', line)
  for i = 1, #fields, 2 do
    if string.byte(fields[i]) == 98 and #fields[i] == 33 and tonumber(fields[i + 1]) < millis then
      call('HDEL', line, fields[i])
    end
  end
end

local answers = {}
for i = 1, #KEYS / 3 do
  local lock, record, line = KEYS[3 * i - 2], KEYS[3 * i - 1], KEYS[3 * i]
  local owner, ttl, bar = ARGV[3 * i - 1], ARGV[3 * i], tonumber(ARGV[3 * i + 1])
  if redis.pcall('GET', lock) == owner then
    call('PEXPIRE', lock, ttl)
    answers[i] = token_held(record, owner, who, ttl)
  else
    step_out(line, owner)
    sweep(line)
    local known = call('HMGET', line, 'h', 't', 'x')
    local until_then = math.max(tonumber(known[3]) or 0, millis + bar)
    call('HSET', line, 'h', known[1] or 0, 't', known[2] or 0,
      'x', string.format('%.0f', until_then), 'b' .. owner, string.format('%.0f', millis + bar))
    keep_line(line, until_then)
    answers[i] = 0
  end
end
return answers

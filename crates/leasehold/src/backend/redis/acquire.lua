-- Takes each lock that is free; where a claim asks to queue, takes a place in its line.
-- KEYS  for each claim: lock, record, line
-- ARGV  channel, holder; for each claim: owner, ttl in ms, 1 to queue or 0, number
-- Answers for each claim: the token, or {1 queued or 0 held, left in ms, 1 if first in
-- line, what the lock key holds, the record}.
local channel, holder = ARGV[1], ARGV[2]
local answers = {}

local function contended(lock, record, line, owner, ttl, queue, number)
  local barred = redis.call('HGET', line, 'b' .. owner)
  if barred and tonumber(barred) > millis then
    return { 0, -1, 0, '', '' }
  end
  -- A key of another type is another's lock as well: then this is a table.
  local value = redis.pcall('GET', lock)
  if value == owner then
    redis.call('PEXPIRE', lock, ttl)
    return token_held(record, owner, channel, holder, ttl)
  end
  if not value then
    value = serve(lock, record, line)
    if value == owner then
      redis.call('PEXPIRE', lock, ttl)
      return token_held(record, owner, channel, holder, ttl)
    end
    if not value then
      local token = next_token(token_of(redis.call('GET', record)))
      redis.call('SET', lock, owner, 'PX', ttl)
      remember(record, token, owner, channel, holder, ttl)
      return token
    end
  end
  local first = queue == '1' and stand(line, owner, number, ttl, channel, holder)
  if type(value) == 'table' then
    value = ''
  end
  return {
    tonumber(queue), redis.call('PTTL', lock), first and 1 or 0,
    value, redis.call('GET', record) or '',
  }
end

for i = 1, #KEYS / 3 do
  local lock, record, line = KEYS[3 * i - 2], KEYS[3 * i - 1], KEYS[3 * i]
  local owner, ttl = ARGV[4 * i - 1], ARGV[4 * i]
  if redis.call('EXISTS', lock, line) == 0 then
    local token = next_token(token_of(redis.call('GET', record)))
    redis.call('SET', lock, owner, 'PX', ttl)
    remember(record, token, owner, channel, holder, ttl)
    answers[i] = token
  else
    answers[i] = contended(lock, record, line, owner, ttl, ARGV[4 * i + 1], ARGV[4 * i + 2])
  end
end
return answers

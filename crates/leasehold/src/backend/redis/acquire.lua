-- The claims whose locks are held, waited for, or whose line bars somebody.
local function contended(lock, record, line, owner, ttl, queue, number)
  local barred = redis.call('HGET', line, 'b' .. owner)
  if barred and tonumber(barred) > millis then
    return { 0, -1, 0, '', '' }
  end
  -- A key of another type is another's lock as well: then this is a table.
  local value = redis.pcall('GET', lock)
  if not value then
    value = serve(lock, record, line)
    if not value then
      local token = next_token(token_of(redis.call('GET', record)))
      redis.call('SET', lock, owner, 'PX', ttl)
      remember(record, token, owner, channel, holder, ttl)
      return token
    end
  end
  if value == owner then
    redis.call('PEXPIRE', lock, ttl)
    return token_held(record, owner, channel, holder, ttl)
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

for _, i in ipairs(others) do
  answers[i] = contended(KEYS[3 * i - 2], KEYS[3 * i - 1], KEYS[3 * i],
    ARGV[4 * i - 1], ARGV[4 * i], ARGV[4 * i + 1], ARGV[4 * i + 2])
end
return answers

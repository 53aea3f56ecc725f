-- The other claims.
local function contended(lock, record, line, owner, ttl, number)
  local barred = call('HGET', line, 'b' .. owner)
  if barred and tonumber(barred) > millis then
    return { 0, -1, '', '' }
  end
  -- A key of another type is another's lock as well: then this is a table.
  local value = redis.pcall('GET', lock)
  if not value then
    value = serve(lock, record, line)
    if not value then
      local token = next_token(token_of(call('GET', record)))
      call('SET', lock, owner, 'PX', ttl)
      remember(record, token, owner, who, ttl)
      return token
    end
  end
  if value == owner then
    call('PEXPIRE', lock, ttl)
    return token_held(record, owner, who, ttl)
  end
  local queues = number ~= '0'
  local first = queues and stand(line, owner, number, ttl, who)
  if type(value) == 'table' then
    value = ''
  end
  return {
    queues and 1 or 0, first and call('PTTL', lock) or -1, value, call('GET', record) or '',
  }
end

for _, i in ipairs(others) do
  answers[i] = contended(KEYS[3 * i - 2], KEYS[3 * i - 1], KEYS[3 * i],
    ARGV[3 * i - 1], ARGV[3 * i], ARGV[3 * i + 1])
end
return answers

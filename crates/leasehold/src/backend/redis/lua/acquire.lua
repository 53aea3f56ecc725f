-- What is left of a lock's key in ms, or -3 if it never expires.
local function left_of(lock)
  local left = call('PTTL', lock)
  return left == -1 and -3 or left
end

-- The other claims.
local function contended(lock, record, queue, tombstone, owner, ttl, number, said)
  if call('EXISTS', tombstone) == 1 then
    return { 0, -1, '', '' }
  end
  -- A key of another type is another's lock as well: then this is a table.
  local value = redis.pcall('GET', lock)
  if not value then
    value = serve(lock, record, queue)
    if value == nil then
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
  local known = call('GET', record) or ''
  local free = value == false
  if type(value) ~= 'string' then
    value = ''
  end
  if number == '0' then
    return { 0, left_of(lock) == -3 and -3 or -1, value, known }
  end
  local place, seen
  if said ~= '' then
    place = place_of(queue, owner, said, ttl, who)
  end
  place, seen = stand(queue, place, owner, number, ttl, who)
  -- A lock that is free only waits for the next look at its queue.
  local left = free and 0 or place == 0 and left_of(lock) or -1
  return { 1, left, value, known, seen }
end

for queue, length in pairs(long) do
  sweep(queue, length)
end
for _, i in ipairs(others) do
  answers[i] = contended(KEYS[4 * i - 3], KEYS[4 * i - 2], KEYS[4 * i - 1], KEYS[4 * i],
    ARGV[4 * i - 2], ARGV[4 * i - 1], ARGV[4 * i], ARGV[4 * i + 1])
end
return answers

-- Who has a lock, by its record.
local function owner_of(record)
  return record and string.match(record, '^%d+ %d+ (%S+)')
end

-- The token of an owner that has the lock. Where its record was lost, nobody can have
-- been told it yet, or whoever was told asks with it: a fresh one is as good.
local function token_held(record, owner, who, ttl)
  local known = call('GET', record)
  if owner_of(known) == owner then
    return token_of(known)
  end
  local token = next_token(token_of(known))
  remember(record, token, owner, who, ttl)
  return token
end

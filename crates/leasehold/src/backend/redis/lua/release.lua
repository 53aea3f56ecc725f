-- The other holds.
for _, i in ipairs(others) do
  local lock = KEYS[3 * i - 2]
  -- Whoever has the lock has its last token.
  if not serve(lock, KEYS[3 * i - 1], KEYS[3 * i], tonumber(ARGV[2 * i])) then
    call('DEL', lock)
  end
  answers[i] = 1
end
return answers

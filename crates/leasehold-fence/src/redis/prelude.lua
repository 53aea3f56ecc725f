-- Goes in front of a script that writes. KEYS[1] is the mark, ARGV[1] the token; the script
-- behind finds its own keys and arguments from 1 on.
-- Tokens are compared as decimal texts: Lua's numbers end at 2^53.
do
    local given, seen = ARGV[1], redis.call('GET', KEYS[1])
    if seen then
        if not string.match(seen, '^[1-9]%d*$') and seen ~= '0' then
            return redis.error_reply('BADMARK ' .. KEYS[1] .. ' is no fence mark')
        end
        if #seen > #given or (#seen == #given and seen > given) then
            return redis.error_reply('STALETOKEN ' .. seen)
        end
    end
    if seen ~= given then
        redis.call('SET', KEYS[1], given)
    end
    table.remove(KEYS, 1)
    table.remove(ARGV, 1)
end

-- From one state into the next, or over from an older lease that died in the next.
-- $1 key, $2 token, $3 from, $4 to.
update {table} set {state} = $4, {token} = $2
where {key} = $1 and {token} <= $2 and ({state} = $3 or ({state} = $4 and {token} < $2))

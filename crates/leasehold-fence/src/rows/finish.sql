-- Out of a state that the same lease claimed. $1 key, $2 token, $3 from, $4 to.
update {table} set {state} = $4 where {key} = $1 and {token} = $2 and {state} = $3

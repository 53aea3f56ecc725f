-- A conditional write. $1 key, $2 token, from $3 on what {assignments} use.
update {table} set {assignments}, {token} = $2 where {key} = $1 and {token} <= $2

-- Why a conditional write found no row. $1 key.
select {token} from {table} where {key} = $1

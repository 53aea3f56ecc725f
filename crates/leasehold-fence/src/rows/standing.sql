-- Why a transition found no row. $1 key.
select {token}, {state} from {table} where {key} = $1

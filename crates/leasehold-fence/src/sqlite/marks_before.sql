-- The highest mark of the guards that are on a table, whatever the table and they were called when
-- they were made: the marks that its triggers (guard.sql) compare with. ?1 table.
select max(mark.token)
from sqlite_schema guard
join leasehold_fence mark on instr(guard.sql,
    'where resource = ' || quote(mark.resource) || '), 9223372036854775807)') > 0
where guard.type = 'trigger' and guard.tbl_name = ?1 collate nocase
    and guard.name like 'leasehold\_fence\_%' escape '\'

-- What about this server's set-up matters to locks.
select current_setting('server_version'), current_setting('fsync'),
       current_setting('full_page_writes'), current_setting('synchronous_commit'),
       current_setting('synchronous_standby_names'),
       (select count(*) from pg_stat_replication),
       (select count(*) from pg_stat_replication where sync_state in ('sync', 'quorum')),
       (select greatest(0, coalesce(max(token), 0) / 1e6
               - date_part('epoch', clock_timestamp())) from leasehold.locks)::float8

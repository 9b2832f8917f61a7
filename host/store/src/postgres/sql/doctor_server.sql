-- What the server is and how it is set, as it is for this role in this database.
select
    current_setting('server_version') as version,
    current_setting('server_version_num')::integer as version_number,
    pg_is_in_recovery() as standby,
    current_setting('fsync')::boolean as fsync,
    current_setting('full_page_writes')::boolean as full_page_writes,
    current_setting('synchronous_commit') as synchronous_commit,
    -- Who turned it off for themselves: a producer may have.
    array(
        select coalesce(r.rolname, 'every role') || coalesce(' in ' || d.datname, '')
        from pg_db_role_setting as s
        left join pg_roles as r on r.oid = s.setrole
        left join pg_database as d on d.oid = s.setdatabase
        where (s.setdatabase = 0 or d.datname = current_database())
            and s.setconfig && array['synchronous_commit=off', 'synchronous_commit=local']
    )::text[] as asynchronous_roles,
    current_setting('autovacuum')::boolean and current_setting('track_counts')::boolean as autovacuum,
    pg_notification_queue_usage()::float8 as notify_queue,
    pg_has_role('pg_read_all_stats', 'usage') as sees_all,
    (
        select count(*)
        from pg_stat_activity
        where application_name = 'outboxd listener' and datname = current_database()
    ) as listeners,
    (extract(epoch from clock_timestamp()) * 1000)::bigint as now_ms

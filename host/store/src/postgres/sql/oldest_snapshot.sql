-- Who holds the oldest snapshot that vacuum must respect in this database: until it ends, dead rows of a queue stay and
-- slow every claim down. Sessions, prepared transactions and replication slots; how long, where it can be known. A session
-- that has written and sits idle in its transaction has no snapshot any more, and holds vacuum back all the same, by its
-- transaction's id. Of several that hold back as much, the one that began first.
select holder, age_s, query
from (
    select
        'pid ' || pid || coalesce(' (' || nullif(application_name, '') || ')', '') || coalesce(', ' || state, '') as holder,
        extract(epoch from clock_timestamp() - xact_start)::float8 as age_s,
        nullif(query, '<insufficient privilege>') as query,
        greatest(age(backend_xmin), age(backend_xid)) as xids
    from pg_stat_activity
    where (backend_xmin is not null or backend_xid is not null)
        and pid <> pg_backend_pid()
        -- Not autovacuum's own workers, which nobody is the user of. Their type would say so too, but not to a role that may
        -- not see it: there it is null for every session of another role.
        and usesysid is not null
        -- Nor whoever vacuums, as relays do: vacuums pass each other over.
        and pid not in (select v.pid from pg_stat_progress_vacuum as v)
        and (datname = current_database() or datname is null)
    union all
    select
        'the prepared transaction ' || quote_literal(gid),
        extract(epoch from clock_timestamp() - prepared)::float8,
        null,
        age(transaction)
    from pg_prepared_xacts
    where database = current_database()
    union all
    select 'the replication slot ' || quote_literal(slot_name), null, null, age(xmin)
    from pg_replication_slots
    where xmin is not null
) as holders
order by xids desc, age_s desc nulls last
limit 1

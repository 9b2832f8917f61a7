-- How the outbox table fares. $1: the names of its own indexes.
select
    coalesce(s.n_live_tup, 0) as live,
    coalesce(s.n_dead_tup, 0) as dead,
    (extract(epoch from now() - greatest(s.last_autovacuum, s.last_vacuum)))::bigint as vacuumed_ago_s,
    coalesce(
        (select option_value::boolean from pg_options_to_table(c.reloptions) where option_name = 'autovacuum_enabled'),
        true
    ) as autovacuum,
    array(
        select name
        from unnest($1::text[]) as name
        where not exists (
            select
            from pg_index as i
            join pg_class as ic on ic.oid = i.indexrelid
            where i.indrelid = c.oid and i.indisvalid and ic.relname = name
        )
    ) as missing_indexes,
    -- Not ours, keeps no rule, never read, though many rows were written.
    array(
        select ic.relname::text
        from pg_index as i
        join pg_class as ic on ic.oid = i.indexrelid
        join pg_stat_all_indexes as si on si.indexrelid = i.indexrelid
        where i.indrelid = c.oid
            and not i.indisunique
            and ic.relname <> all($1::text[])
            and si.idx_scan = 0
            and coalesce(s.n_tup_ins, 0) >= 1000
    ) as unused_indexes,
    array(
        select object || ' (' || privilege || ')'
        from (
            values
                ({table_literal}, 'select', has_table_privilege({table_literal}, 'select')),
                ({table_literal}, 'update', has_table_privilege({table_literal}, 'update')),
                ({table_literal}, 'delete', has_table_privilege({table_literal}, 'delete')),
                ({control_literal}, 'select', has_table_privilege({control_literal}, 'select')),
                ({control_literal}, 'insert', has_table_privilege({control_literal}, 'insert')),
                ({control_literal}, 'update', has_table_privilege({control_literal}, 'update')),
                ({control_literal}, 'delete', has_table_privilege({control_literal}, 'delete')),
                ({sleepers_literal}, 'select', has_table_privilege({sleepers_literal}, 'select')),
                ({sleepers_literal}, 'insert', has_table_privilege({sleepers_literal}, 'insert')),
                ({sleepers_literal}, 'update', has_table_privilege({sleepers_literal}, 'update')),
                ({sleepers_literal}, 'delete', has_table_privilege({sleepers_literal}, 'delete')),
                ({versions_literal}, 'select', has_table_privilege({versions_literal}, 'select')),
                ({asleep_literal}, 'update', has_sequence_privilege({asleep_literal}, 'update'))
        ) as needed (object, privilege, granted)
        where not granted
    ) as missing_privileges
from pg_class as c
left join pg_stat_all_tables as s on s.relid = c.oid
where c.oid = {table_literal}::regclass

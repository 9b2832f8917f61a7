-- How the outbox table fares; no row where it is not there. $1: the names of its own indexes.
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
    -- What is not there is the schema's to say.
    array(
        select object || ' (' || privilege || ')'
        from (
            values
                ({table_literal}, array['select', 'update', 'delete']),
                ({control_literal}, array['select', 'insert', 'update', 'delete']),
                ({keys_literal}, array['select', 'insert', 'update', 'delete']),
                ({sleepers_literal}, array['select', 'insert', 'update', 'delete']),
                ({versions_literal}, array['select'])
        ) as needed (object, privileges)
        cross join unnest(privileges) as privilege
        where not has_table_privilege(to_regclass(object), privilege)
        union all
        select {asleep_literal} || ' (update)'
        where not has_sequence_privilege(to_regclass({asleep_literal}), 'update')
    ) as missing_privileges
from pg_class as c
left join pg_stat_all_tables as s on s.relid = c.oid
where c.oid = to_regclass({table_literal})

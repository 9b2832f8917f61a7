-- Writes what messages tell their keys, where it is their turn: ?1 as JSON, for each its id, whether its turn ends, how many
-- milliseconds its key rests, why, and how many calls its target has failed in a row (null: as many as before), and whether its
-- topic is in order: then the next has its turn at once, if its key does not rest. Returns what is at the heads afterwards.
-- One statement may tell of several messages of one key: their parts are added up first.
with told as materialized (
    select
        k.rowid as place,
        m.id,
        e.value ->> 'frees' as frees,
        e.value ->> 'in_order' as in_order,
        e.value ->> 'rest_ms' as rest_ms,
        e.value ->> 'cause' as cause,
        e.value ->> 'failures' as failures
    from json_each(?1) as e
    cross join {table} as m
    cross join {keys} as k
    where m.id = e.value ->> 'id'
        and k.topic = m.topic
        and k.key = m.key
        and (k.head is m.id or exists (select 1 from json_each(k.turns) as t where t.value = m.id))
),
of_key as materialized (
    select
        t.place,
        max(t.frees) as frees,
        min(t.in_order) as in_order,
        max(t.rest_ms) as rest_ms,
        (select same.cause from told as same where same.place = t.place order by same.rest_ms desc limit 1) as cause,
        case when min(t.failures) = 0 then 0 else max(t.failures) end as failures
    from told as t
    group by t.place
)
update {keys} as k
set head = case
        when not part.frees then k.head
        when part.in_order
            and k.turns = '[]'
            and max(k.free_at, cast(round(unixepoch('now', 'subsec') * 1000) as integer) + part.rest_ms)
                <= cast(round(unixepoch('now', 'subsec') * 1000) as integer)
        then (
            select m.id
            from {table} as m
            where m.topic = k.topic
                and m.key = k.key
                and m.state in ('pending', 'held')
            order by m.rowid
            limit 1
        )
    end,
    turns = case
        when part.frees and k.turns <> '[]' then (
            select json_group_array(t.value)
            from json_each(k.turns) as t
            where t.value not in (select e.id from told as e where e.frees)
        )
        else k.turns
    end,
    free_at = case
        when part.frees or part.rest_ms > 0
            then max(k.free_at, cast(round(unixepoch('now', 'subsec') * 1000) as integer) + part.rest_ms)
        else k.free_at
    end,
    cause = case
        -- The longest rest says why.
        when part.rest_ms > 0 and cast(round(unixepoch('now', 'subsec') * 1000) as integer) + part.rest_ms >= k.free_at then part.cause
        else k.cause
    end,
    failures = case when part.failures > 0 then max(k.failures, part.failures) else coalesce(part.failures, k.failures) end
from of_key as part
where k.rowid = part.place
returning head

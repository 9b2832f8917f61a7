-- Lets the next messages go on of keys whose turn these discarded ones have: $1 ids. In the same transaction, and a statement of
-- its own: only one that begins once they are dead sees a turn that they were given while discard.sql waited for them.
with of_key as materialized (
    select m.topic, m.key, array_agg(m.id) as ids
    from {table} as m
    where m.id = any ($1::uuid[])
        and m.state = 'dead'
        and m.reason = 'discarded'
        and m.key is not null
    group by m.topic, m.key
),
-- In one order: otherwise two of these statements could wait for each other's keys in a circle. Each is looked up by itself, and
-- written by what the primary key finds: the planner knows nothing of how many there are.
locked as materialized (
    select k.*, o.ids
    from (select * from of_key order by of_key.topic, of_key.key) as o
    cross join lateral (
        select l.topic, l.key, l.turns, l.free_at
        from {keys} as l
        where l.topic = o.topic
            and l.key = o.key
            and (l.head = any (o.ids) or l.turns && o.ids)
        for no key update of l
    ) as k
)
insert into {keys} as k (topic, key, turns, free_at)
select
    l.topic,
    l.key,
    array(select o.id from unnest(l.turns) as o (id) where o.id <> all (l.ids)),
    greatest(l.free_at, now())
from locked as l
on conflict (topic, key) do update
set head = null,
    turns = excluded.turns,
    free_at = excluded.free_at

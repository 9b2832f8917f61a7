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
-- In one order: otherwise two of these statements could wait for each other's keys in a circle. The arrays below are read before
-- the first key is changed, so all of them are locked by then.
locked as materialized (
    select k.topic, k.key
    from of_key as o
    join {keys} as k on k.topic = o.topic and k.key = o.key
    where k.topic = any (array(select of_key.topic from of_key))
        and k.key = any (array(select of_key.key from of_key))
        and (k.head = any (o.ids) or k.turns && o.ids)
    order by k.topic, k.key
    for no key update of k
)
update {keys} as k
set head = null,
    turns = array(select t.id from unnest(k.turns) as t (id) where t.id <> all (o.ids)),
    free_at = greatest(k.free_at, now())
from of_key as o
where k.topic = any (array(select locked.topic from locked))
    and k.key = any (array(select locked.key from locked))
    and k.topic = o.topic
    and k.key = o.key
    and (k.head = any (o.ids) or k.turns && o.ids)

-- Lets the next messages go on of keys at whose head these discarded ones are: $1 ids. Only a statement that begins once they
-- are dead sees a turn that they were given while discard.sql waited for them.
update {keys} as k
set head = null,
    turns = array(select t.id from unnest(k.turns) as t (id) where t.id <> all (o.ids)),
    free_at = greatest(k.free_at, now())
from (
    select m.topic, m.key, array_agg(m.id) as ids
    from {table} as m
    where m.id = any ($1::uuid[])
        and m.state = 'dead'
        and m.reason = 'discarded'
        and m.key is not null
    group by m.topic, m.key
) as o
where k.topic = any (array(select d.topic from {table} as d where d.id = any ($1::uuid[]) and d.key is not null))
    and k.key = any (array(select d.key from {table} as d where d.id = any ($1::uuid[]) and d.key is not null))
    and k.topic = o.topic
    and k.key = o.key
    and (k.head = any (o.ids) or k.turns && o.ids)

-- Makes messages dead that wait: $1 topic, $2 reason (null: any), $3 at most how many, oldest first. A key
-- goes on without the one at its head.
-- The array is an InitPlan: it runs once, and the update is an index search by id.
with discarded as (
    update {table} as m
    set state = 'dead',
        lease_id = null,
        reason = 'discarded',
        last_error = 'discarded by a person',
        dead_at = now()
    where m.id = any (array(
        select p.id
        from {table} as p
        where p.state in ('pending', 'held')
            and ($1::text is null or p.topic = $1)
            and ($2::text is null or p.reason = $2)
        order by p.id
        limit $3
        for update skip locked
    ))
        and m.state in ('pending', 'held')
    returning m.id, m.topic, m.key
),
of_key as (
    select d.topic, d.key, array_agg(d.id) as ids
    from discarded as d
    where d.key is not null
    group by d.topic, d.key
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
),
freed as (
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
)
select id from discarded

-- Deletes delivered messages whose lease is still held and returns them: $1 ids, $2 lease ids. What settle.sql does with
-- messages to delete, for a batch that has no others and no key that rests.
with deleted as (
    delete from {table} as m
    using unnest($1::uuid[], $2::uuid[]) as s (id, lease_id)
    where m.id = any ($1::uuid[])
        and m.id = s.id
        and m.lease_id = s.lease_id
        and m.state = 'processing'
    returning s.id, s.lease_id, m.topic, m.key
),
of_key as (
    select d.topic, d.key, array_agg(d.id) as ids
    from deleted as d
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
        turns = case
            when k.turns && o.ids then array(select t.id from unnest(k.turns) as t (id) where t.id <> all (o.ids))
            else k.turns
        end,
        free_at = greatest(k.free_at, now()),
        failures = 0
    from of_key as o
    where k.topic = any (array(select locked.topic from locked))
        and k.key = any (array(select locked.key from locked))
        and k.topic = o.topic
        and k.key = o.key
        and (k.head = any (o.ids) or k.turns && o.ids)
)
select id::text as id, lease_id::text as lease_id from deleted

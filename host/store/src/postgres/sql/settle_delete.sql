-- Deletes delivered messages whose lease is still held and returns them: $1 ids, $2 lease ids, $3 which of them are of a topic that
-- is in order. What settle.sql does with messages to delete, for a batch that has no others and no key that rests.
with deleted as (
    delete from {table} as m
    using unnest($1::uuid[], $2::uuid[], $3::boolean[]) as s (id, lease_id, in_order)
    where m.id = any ($1::uuid[])
        and m.id = s.id
        and m.lease_id = s.lease_id
        and m.state = 'processing'
    returning s.id, s.lease_id, s.in_order, m.topic, m.key
),
of_key as (
    select d.topic, d.key, array_agg(d.id) as ids, array_agg(d.id) filter (where d.in_order) as in_order
    from deleted as d
    where d.key is not null
    group by d.topic, d.key
),
-- In one order: otherwise two of these statements could wait for each other's keys in a circle. Each is looked up by itself, and
-- written by what the primary key finds: the planner knows nothing of how many there are.
locked as materialized (
    select k.*, o.ids, o.in_order
    from (select * from of_key order by of_key.topic, of_key.key) as o
    cross join lateral (
        select l.topic, l.key, l.head, l.turns, l.free_at
        from {keys} as l
        where l.topic = o.topic
            and l.key = o.key
            and (l.head = any (o.ids) or l.turns && o.ids)
        for no key update of l
    ) as k
),
-- The next of a key in order has its turn at once, as arrange.sql would give it: that spares the key a second write.
chosen as materialized (
    select
        l.topic,
        l.key,
        (
            select m.id
            from {table} as m
            where m.topic = l.topic
                and m.key = l.key
                and m.state in ('pending', 'held')
            order by m.seq, m.id
            limit 1
        ) as first
    from locked as l
    where l.head = any (l.in_order)
        and l.turns = '{}'
        and l.free_at <= now()
),
-- It may have ended meanwhile: then its state says so once it is locked. What is locked is left for arrange.sql.
next as materialized (
    select m.id, m.state
    from {table} as m
    where m.id = any (array(select chosen.first from chosen where chosen.first is not null))
        and m.state in ('pending', 'held')
    for update skip locked
),
turn as materialized (
    select c.topic, c.key, c.first
    from chosen as c
    join next as n on n.id = c.first
),
let_go as (
    update {table} as m
    set state = 'pending'
    where m.id = any (array(select next.id from next where next.state = 'held'))
),
freed as (
    insert into {keys} as k (topic, key, head, turns, free_at)
    select
        l.topic,
        l.key,
        t.first,
        case when l.turns && l.ids then array(select o.id from unnest(l.turns) as o (id) where o.id <> all (l.ids)) else l.turns end,
        -- Unchanged where it is not free: then the update stays in its page.
        case when t.first is null then greatest(l.free_at, now()) else l.free_at end
    from locked as l
    left join turn as t on t.topic = l.topic and t.key = l.key
    on conflict (topic, key) do update
    set head = excluded.head,
        turns = excluded.turns,
        free_at = excluded.free_at,
        failures = 0
)
select id, lease_id from deleted

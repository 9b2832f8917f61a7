-- Chooses whose turn it is in topics where so many messages of a key may be under way at once, and holds the messages that must
-- wait: $1 topics, $2 so many of each topic's keys, $3 how many due messages of each topic to look at, $4 how many keys of each to
-- go on with, $5 so many failures in a row of a key's target after which a single call tries it. Returns how many due messages
-- have a key that is not there yet, and how many messages were held or have their turn and keys were forgotten.
--
-- Locks and looks as arrange.sql does, and for the same reasons.
with lane as materialized (
    select asked.topic, asked.per_key from unnest($1::text[], $2::bigint[]) as asked (topic, per_key)
),
-- Due, and it is not their turn: claim_limited.sql asks the same.
astray as materialized (
    select due.id, due.topic, due.key, due.state, due.seq, lane.per_key
    from lane
    cross join lateral (
        select o.id, o.topic, o.key, o.state, o.seq
        from {table} as o
        where o.topic = lane.topic
            and o.state in ('pending', 'processing')
            and o.available_at <= now()
        order by o.available_at, o.id
        limit $3
    ) as due
    where due.key is not null
        and (
            select due.id = any (k.turns) and k.free_at <= now() and (k.failures < $5 or due.id = k.head)
            from {keys} as k
            where k.topic = due.topic
                and k.key = due.key
        ) is not true
),
asked as materialized (
    select a.topic, a.key, a.per_key from astray as a
    union
    select free.topic, free.key, lane.per_key
    from lane
    cross join lateral (
        select k.topic, k.key
        from {keys} as k
        where k.topic = lane.topic
            and k.is_free
            and k.free_at <= now()
        order by k.free_at, k.key
        limit $4
    ) as free
),
chosen as materialized (
    select
        k.place,
        k.topic,
        k.key,
        k.head,
        k.holds,
        k.failures,
        k.free_at,
        k.turns as turns_before,
        live.turns,
        (select s.holds from {keys} as s where s.topic = asked.topic and s.key = asked.key) as holds_seen,
        (select cardinality(s.turns) from {keys} as s where s.topic = asked.topic and s.key = asked.key) as turns_seen,
        case
            -- A key that rests goes on with none of them, one that has rested with one.
            when k.free_at > now() then 0
            when k.failures >= $5 then greatest(1 - cardinality(live.turns), 0)
            else greatest(asked.per_key - cardinality(live.turns), 0)
        end as room
    from asked
    cross join lateral (
        select l.ctid as place, l.topic, l.key, l.head, l.turns, l.holds, l.failures, l.free_at
        from {keys} as l
        where l.topic = asked.topic
            and l.key = asked.key
        for update skip locked
    ) as k
    -- A turn ends, too, whose message was held or ended while the topic was ordered, or was deleted: nobody told the key. One
    -- that was given since this statement began stays, and one whose message is held only as far as is seen here.
    cross join lateral (
        select array(
            select t.id
            from unnest(k.turns) with ordinality as t (id, place)
            where t.id <> all (coalesce((select s.turns from {keys} as s where s.topic = asked.topic and s.key = asked.key), '{}'))
                or (
                    exists (select 1 from {table} as m where m.id = t.id)
                    and (
                        select m.id
                        from {table} as m
                        where m.id = t.id
                            and m.state not in ('pending', 'processing')
                        for share skip locked
                    ) is null
                )
            order by t.place
        ) as turns
        offset 0
    ) as live
),
candidate as materialized (
    select c.topic, c.key, c.room, held.id, held.seq
    from chosen as c
    cross join lateral (
        select o.id, o.seq
        from {table} as o
        where o.topic = c.topic
            and o.key = c.key
            and o.state = 'held'
            and o.id <> all (c.turns)
        order by o.seq, o.id
        limit c.room
    ) as held
    union all
    select c.topic, c.key, c.room, a.id, a.seq
    from astray as a
    join chosen as c on c.topic = a.topic and c.key = a.key
    where a.state = 'pending'
        and a.id <> all (c.turns)
        and c.room > 0
),
wanted as materialized (
    select p.topic, p.key, p.id
    from (
        select c.*, row_number() over (partition by c.topic, c.key order by c.seq, c.id) as place
        from candidate as c
    ) as p
    where p.place <= p.room
),
-- It may have ended meanwhile, or wait for a retry: then its row says so once it is locked.
next as materialized (
    select o.id, o.state, o.topic, o.key, o.seq
    from {table} as o
    where o.id = any (array(select wanted.id from wanted))
        and (o.state = 'held' or (o.state = 'pending' and o.available_at <= now()))
    for update skip locked
),
behind as materialized (
    select o.id, o.topic, o.key
    from {table} as o
    where o.id = any (array(
            select a.id
            from astray as a
            join chosen as c on c.topic = a.topic and c.key = a.key
            where (a.id = any (c.turns) and c.free_at <= now() and (c.failures < $5 or a.id = c.head)) is not true
                and a.id not in (select w.id from wanted as w)
        ))
        and o.state in ('pending', 'processing')
        and o.available_at <= now()
    for update skip locked
),
-- Where all messages of a key wait for a retry, the first of them stands at its head, so that nobody looks before it is due.
later as materialized (
    select c.topic, c.key, first.id
    from chosen as c
    cross join lateral (
        select o.id
        from {table} as o
        where o.topic = c.topic
            and o.key = c.key
            and o.state in ('pending', 'held')
        order by o.seq, o.id
        limit 1
        for update skip locked
    ) as first
    where c.room > 0
        and cardinality(c.turns) = 0
        and (c.topic, c.key) not in (select w.topic, w.key from wanted as w)
),
let_go as (
    update {table} as m
    set state = 'pending'
    where m.id = any (array(select next.id from next where next.state = 'held'))
),
held as (
    update {table} as m
    set state = 'held',
        -- One that is being processed is under a lease that was lost.
        lapses = least(m.lapses, 2147483646) + case when m.state = 'processing' then 1 else 0 end,
        lease_id = null
    where m.id = any (array(select behind.id from behind))
),
given as materialized (
    select n.topic, n.key, array_agg(n.id order by n.seq, n.id) as ids from next as n group by n.topic, n.key
),
taken as materialized (
    select b.topic, b.key, array_agg(b.id) as ids from behind as b group by b.topic, b.key
),
arranged as materialized (
    select
        c.place,
        c.topic,
        c.key,
        c.head,
        -- Otherwise a message was held since this statement began, and is not seen here.
        c.holds = c.holds_seen as is_sure,
        c.free_at > now() as rests,
        c.room,
        c.room - coalesce(cardinality(given.ids), 0) as room_left,
        taken.ids is not null as holds_more,
        -- It was locked, or waits for a retry by now.
        (c.topic, c.key) in (select w.topic, w.key from wanted as w where w.id not in (select next.id from next)) as is_missing_one,
        c.turns_before,
        c.turns_seen,
        later.id as later,
        array(select t.id from unnest(c.turns) as t (id) where t.id <> all (coalesce(taken.ids, '{}')))
            || coalesce(given.ids, '{}') as turns
    from chosen as c
    left join given on given.topic = c.topic and given.key = c.key
    left join taken on taken.topic = c.topic and taken.key = c.key
    left join later on later.topic = c.topic and later.key = c.key
),
-- They are locked: what is found there is what is written.
noted as (
    insert into {keys} as k (topic, key, turns, head, holds)
    select
        a.topic,
        a.key,
        a.turns,
        case
            -- Somebody has to look when it has rested.
            when a.rests then null
            -- There may be more for whom there is room.
            when a.room_left > 0 and (a.holds_more or a.is_missing_one or not a.is_sure) then null
            when a.head = any (a.turns) then a.head
            when cardinality(a.turns) > 0 then a.turns[1]
            else a.later
        end,
        case when a.holds_more then 1 else 0 end
    from arranged as a
    where cardinality(a.turns) > 0
        or cardinality(a.turns_before) > 0
        or a.later is not null
        or a.holds_more
    on conflict (topic, key) do update
    set turns = excluded.turns,
        head = excluded.head,
        holds = k.holds + excluded.holds
),
gone as (
    delete from {keys} as k
    where k.ctid = any (array(
        select a.place
        from arranged as a
        where a.room > 0
            and cardinality(a.turns_before) = 0
            -- Otherwise a turn has ended since this statement began, and how is not seen here.
            and a.turns_seen = 0
            and not exists (
                select from {table} as o where o.topic = a.topic and o.key = a.key and o.state in ('pending', 'held')
            )
            and a.is_sure
            and (a.topic, a.key) not in (select w.topic, w.key from wanted as w)
            and (a.topic, a.key) not in (select s.topic, s.key from astray as s)
    ))
    returning k.key
)
select
    (
        select count(*)
        from astray as a
        where (select k.holds from {keys} as k where k.topic = a.topic and k.key = a.key) is null
    ) as unknown,
    (select count(*) from next) + (select count(*) from behind) + (select count(*) from gone) as arranged

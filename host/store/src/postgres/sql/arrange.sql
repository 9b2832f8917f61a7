-- Chooses whose turn it is in ordered topics, and holds the messages that must wait: $1 topics, $2 how many due messages of each
-- to look at, $3 how many keys of each to go on with, $4 whether to hold those behind the head of their key. Returns how many due
-- messages have a key that is not there yet, and how many messages were held or have their turn and keys were forgotten.
--
-- Keys are locked first, and then seen as they are now, not as they were when the statement began; messages are locked before
-- anything is decided about them. Nothing ever waits for a lock, so that nothing can wait in a circle: what is locked is left
-- for the next time. Whatever looks for one key is written so that no plan reads all keys, and what joins these lists so that
-- it is hashed: the planner takes each of them for a row or two.
with lane as materialized (
    select asked.topic from unnest($1::text[]) as asked (topic)
),
-- Due, but not at the head of their key, or with turns from before the topic was ordered.
due as materialized (
    select head.id, head.topic, head.key,
        (
            select case when k.turns <> '{}' or k.head is null then 'free' when k.head = head.id then 'head' else 'behind' end
            from {keys} as k
            where k.topic = head.topic
                and k.key = head.key
        ) as place
    from lane
    cross join lateral (
        select o.id, o.topic, o.key
        from {table} as o
        where o.topic = lane.topic
            and o.state in ('pending', 'processing')
            and o.available_at <= now()
        order by o.available_at, o.id
        limit $2
    ) as head
    where head.key is not null
),
astray as materialized (
    select due.id, due.topic, due.key
    from due
    where due.place is null
        or due.place = 'free'
        or due.place = 'behind' and $4
),
asked as materialized (
    select a.topic, a.key from astray as a
    union
    select free.topic, free.key
    from lane
    cross join lateral (
        select k.topic, k.key
        from {keys} as k
        where k.topic = lane.topic
            and k.is_free
            and k.free_at <= now()
        order by k.free_at, k.key
        limit $3
    ) as free
),
chosen as materialized (
    select
        k.place,
        k.topic,
        k.key,
        k.head,
        k.turns,
        k.holds,
        k.free_at,
        (select s.holds from {keys} as s where s.topic = asked.topic and s.key = asked.key) as holds_seen,
        case
            -- A key that rests goes on with none of them.
            when k.head is null and k.free_at <= now() then (
                select o.id
                from {table} as o
                where o.topic = asked.topic
                    and o.key = asked.key
                    and o.state in ('pending', 'held')
                order by o.seq, o.id
                limit 1
            )
        end as first
    from asked
    cross join lateral (
        select l.ctid as place, l.topic, l.key, l.head, l.turns, l.holds, l.free_at
        from {keys} as l
        where l.topic = asked.topic
            and l.key = asked.key
        for update skip locked
    ) as k
),
-- It may have ended meanwhile: then its state says so once it is locked.
next as materialized (
    select o.id, o.state
    from {table} as o
    where o.id = any (array(select chosen.first from chosen where chosen.first is not null))
        and o.state in ('pending', 'held')
    for update skip locked
),
behind as materialized (
    select o.id, o.topic, o.key
    from {table} as o
    where o.id = any (array(
            select a.id
            from astray as a
            join chosen as c on c.topic = a.topic and c.key = a.key
            where a.id is distinct from c.head
                and a.id is distinct from c.first
                and ($4 or c.head is null and c.first is null)
        ))
        and o.state in ('pending', 'processing')
        and o.available_at <= now()
    for update skip locked
),
let_go as (
    update {table} as m
    set state = 'pending'
    where m.id = any (array(select next.id from next where next.state = 'held'))
),
held as (
    update {table} as m
    set state = 'held',
        -- One that is being processed is under a lease that was lost, from before its topic was ordered.
        lapses = least(m.lapses, 2147483646) + case when m.state = 'processing' then 1 else 0 end,
        lease_id = null
    where m.id = any (array(select behind.id from behind))
),
-- They are locked: what is found there is what is written.
noted as (
    insert into {keys} as k (topic, key, head, holds)
    select c.topic, c.key, c.head, c.holds
    from (
        select
            c.topic,
            c.key,
            case when c.first in (select next.id from next) then c.first else c.head end as head,
            case when (c.topic, c.key) in (select b.topic, b.key from behind as b) then 1 else 0 end as holds,
            c.head as head_before,
            c.turns
        from chosen as c
    ) as c
    where c.head is distinct from c.head_before
        or c.holds > 0
        or cardinality(c.turns) > 0
    on conflict (topic, key) do update
    set head = excluded.head,
        -- From before the topic was ordered: there the head alone has its turn.
        turns = '{}',
        holds = k.holds + excluded.holds
),
gone as (
    delete from {keys} as k
    where k.ctid = any (array(
        select c.place
        from chosen as c
        where c.head is null
            and c.first is null
            and c.free_at <= now()
            and cardinality(c.turns) = 0
            -- Otherwise a message was held since this statement began, and is not seen here.
            and c.holds = c.holds_seen
            and (c.topic, c.key) not in (select a.topic, a.key from astray as a)
    ))
    returning k.key
)
select
    (
        select count(*)
        from astray as a
        where (select k.holds from {keys} as k where k.topic = a.topic and k.key = a.key) is null
    ) as unknown,
    (select count(*) from next) + (select count(*) from behind) + (select count(*) from gone)
        + (select count(*) from chosen where cardinality(chosen.turns) > 0) as arranged

-- Lets go of messages that wait for their key, in a topic where keys are no unit of delivery any more, and forgets keys that
-- hold none: $1 topic, $2 at most how many messages and keys. Returns how many rows it changed.
-- Nothing ever waits for a lock: what is locked is left for the next time. What is let go leaves the index that is read here.
with chosen as materialized (
    select
        k.place,
        k.key,
        k.holds,
        (select s.holds from {keys} as s where s.topic = $1 and s.key = k.key) as holds_seen
    from (select l.ctid as place, l.key, l.holds from {keys} as l where l.topic = $1 order by l.key limit $2 for update skip locked) as k
),
waiting as materialized (
    select w.id, w.key
    from chosen
    cross join lateral (
        select o.id, o.key
        from {table} as o
        where o.topic = $1
            and o.key = chosen.key
            and o.state = 'held'
        order by o.seq, o.id
        limit $2
    ) as w
    limit $2
),
let_go as (
    update {table} as m
    set state = 'pending'
    where m.id = any (array(
        select o.id
        from {table} as o
        where o.id = any (array(select waiting.id from waiting))
            and o.state = 'held'
        for update skip locked
    ))
        and m.state = 'held'
    returning m.id
),
gone as (
    delete from {keys} as k
    where k.ctid = any (array(
        select c.place
        from chosen as c
        where c.holds = c.holds_seen
            -- All of them were looked at, or the limit ended the search.
            and (select count(*) from waiting) < $2
            and c.key not in (select w.key from waiting as w)
    ))
    returning k.key
)
select (select count(*) from let_go) + (select count(*) from gone) as changed

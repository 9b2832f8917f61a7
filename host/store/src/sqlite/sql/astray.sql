-- Due messages of topics where so many messages of a key may be under way at once, whose turn it is not: ?1 topics as JSON, ?2 how
-- many due ones of each to look at, ?3 so many failures in a row of a key's target after which a single call tries it.
-- claim_limited.sql asks the same.
with clock (now) as materialized (select cast(round(unixepoch('now', 'subsec') * 1000) as integer))
select o.topic, o.key, o.id, o.rowid as place, o.state = 'pending' as waits
from json_each(?1) as lane,
    json_each((
        select json_group_array(head.id)
        from (
            select o.id
            from {table} as o
            where o.topic = lane.value
                and o.state in ('pending', 'processing')
                and o.available_at <= (select now from clock)
            order by o.available_at, o.id
            limit ?2
        ) as head
    )) as due
cross join {table} as o
where o.id = due.value
    and o.key is not null
    and not exists (
        select 1
        from {keys} as k
        where k.topic = o.topic
            and k.key = o.key
            and k.free_at <= (select now from clock)
            and (k.failures < ?3 or k.head is o.id)
            and exists (select 1 from json_each(k.turns) as t where t.value = o.id)
    )

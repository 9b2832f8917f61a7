-- Holds due messages of ordered topics that are not at the head of their key: ?1 topics as JSON, ?2 how many of each to look at, ?3
-- whether also those behind a head.
with clock (now) as materialized (select cast(round(unixepoch('now', 'subsec') * 1000) as integer))
update {table} as m
set state = 'held',
    -- One that is being processed is under a lease that was lost, from before its topic was ordered.
    lapses = min(m.lapses, 2147483646) + (m.state = 'processing'),
    lease_id = null
where m.id in (
    select due.value
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
)
    and m.key is not null
    -- Only where the key is there: a message may have become due since keys were added, and nobody looks for what is held without
    -- a key.
    and exists (select 1 from {keys} as k where k.topic = m.topic and k.key = m.key and k.head is not m.id and (k.head is null or ?3))

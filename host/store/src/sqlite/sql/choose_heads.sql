-- Chooses whose turn it is, of the keys of due messages and of the keys that have been free longest, and returns them: ?1 topics
-- as JSON, ?2 how many due messages of each to look at, ?3 how many free keys of each.
with clock (now) as materialized (select cast(round(unixepoch('now', 'subsec') * 1000) as integer))
update {keys} as k
set head = (
    select o.id
    from {table} as o
    where o.topic = k.topic
        and o.key = k.key
        and o.state in ('pending', 'held')
    order by o.rowid
    limit 1
),
    -- From before the topic was ordered: there the head alone has its turn.
    turns = '[]'
where k.rowid in (
    select free.value
    from json_each(?1) as lane,
        json_each((
            select json_group_array(head.rowid)
            from (
                select f.rowid
                from {keys} as f
                where f.topic = lane.value
                    and f.head is null
                    and f.free_at <= (select now from clock)
                order by f.free_at, f.key
                limit ?3
            ) as head
        )) as free
    union
    select f.rowid
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
    cross join {keys} as f
    where o.id = due.value
        and f.topic = o.topic
        and f.key = o.key
        and f.head is null
        -- A key that rests goes on with none of its messages.
        and f.free_at <= (select now from clock)
)
returning head

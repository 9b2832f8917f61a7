-- Deletes keys that have no message left: ?1 topics as JSON, ?2 how many keys of each to look at.
with clock (now) as materialized (select cast(round(unixepoch('now', 'subsec') * 1000) as integer))
delete from {keys} as k
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
                limit ?2
            ) as head
        )) as free
)
    and not exists (
        select 1
        from {table} as o
        where o.topic = k.topic
            and o.key = k.key
            and o.state in ('pending', 'held')
    )

-- Deletes dead letters: ?1 older than so many milliseconds, ?2 at most how many. Not what blocks its key.
delete from {table} as m
where m.id in (
    select o.id
    from {table} as o
    where o.state = 'dead'
        and o.dead_at <= cast(round(unixepoch('now', 'subsec') * 1000) as integer) - ?1
        and not exists (select 1 from {keys} as k where k.topic = o.topic and k.key = o.key and k.head = o.id)
    order by o.dead_at, o.id
    limit ?2
)

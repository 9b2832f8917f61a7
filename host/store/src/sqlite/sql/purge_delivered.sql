-- Deletes delivered messages: ?1 older than so many milliseconds, ?2 at most how many.
delete from {table} as m
where m.id in (
    select o.id
    from {table} as o
    where o.state = 'delivered'
        and o.delivered_at <= cast(round(unixepoch('now', 'subsec') * 1000) as integer) - ?1
    order by o.delivered_at, o.id
    limit ?2
)

-- Deletes delivered messages: $1 older than so many milliseconds, $2 at most how many. Skips what somebody has locked.
delete from {table} as m
where m.id = any (array(
    select o.id
    from {table} as o
    where o.state = 'delivered'
        and o.delivered_at <= now() - $1 * interval '1 millisecond'
    order by o.delivered_at, o.id
    limit $2
    for update skip locked
))

-- Deletes dead letters: $1 older than so many milliseconds, $2 at most how many. Skips what somebody has locked.
delete from {table} as m
where m.id = any (array(
    select o.id
    from {table} as o
    where o.state = 'dead'
        and o.dead_at <= now() - $1 * interval '1 millisecond'
    order by o.dead_at, o.id
    limit $2
    for update skip locked
))

-- Deletes dead letters: $1 older than so many milliseconds, $2 at most how many. Skips what somebody has locked, and
-- what blocks its key.
delete from {table} as m
where m.id = any (array(
    select o.id
    from {table} as o
    where o.state = 'dead'
        and o.dead_at <= now() - $1 * interval '1 millisecond'
        and o.id is distinct from (select k.head from {keys} as k where k.topic = o.topic and k.key = o.key)
    order by o.dead_at, o.id
    limit $2
    for update skip locked
))

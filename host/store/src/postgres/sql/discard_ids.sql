-- Makes live messages dead: $1 ids, $2 at most how many. One that is being processed loses its lease.
update {table} as m
set state = 'dead',
    lease_id = null,
    reason = 'discarded',
    last_error = 'discarded by a person',
    dead_at = now()
where m.id = any (array(
    select l.id
    from {table} as l
    where l.id = any ($1::uuid[])
        and l.state in ('pending', 'processing', 'held')
    order by l.id
    limit $2
    for update
))
    and m.state in ('pending', 'processing', 'held')
returning m.id

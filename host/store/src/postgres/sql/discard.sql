-- Makes live messages dead: $1 ids. One that is being processed loses its lease.
update {table} as m
set state = 'dead',
    lease_id = null,
    reason = 'discarded',
    last_error = 'discarded by a person',
    dead_at = now()
where m.id = any ($1::uuid[])
    and m.state in ('pending', 'processing', 'held')

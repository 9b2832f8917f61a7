-- Makes live messages dead: ?1 ids as JSON. One that is being processed loses its lease.
update {table} as m
set state = 'dead',
    lease_id = null,
    reason = 'discarded',
    last_error = 'discarded by a person',
    dead_at = cast(round(unixepoch('now', 'subsec') * 1000) as integer)
where m.id in (select value from json_each(?1))
    and m.state in ('pending', 'processing', 'held')

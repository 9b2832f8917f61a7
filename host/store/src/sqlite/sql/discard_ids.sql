-- Makes live messages dead, and returns them: ?1 ids as JSON, ?2 at most how many. One that is being processed loses its lease.
update {table} as m
set state = 'dead',
    lease_id = null,
    reason = 'discarded',
    last_error = 'discarded by a person',
    dead_at = cast(round(unixepoch('now', 'subsec') * 1000) as integer)
where m.id in (
    select l.id
    from {table} as l
    where l.id in (select value from json_each(?1))
        and l.state in ('pending', 'processing', 'held')
    order by l.id
    limit ?2
)
returning id

-- Makes messages dead that wait, and returns them: ?1 topic, ?2 reason (null: any), ?3 at most how many, oldest first.
update {table} as m
set state = 'dead',
    lease_id = null,
    reason = 'discarded',
    last_error = 'discarded by a person',
    dead_at = cast(round(unixepoch('now', 'subsec') * 1000) as integer)
where m.id in (
    select p.id
    from {table} as p
    where p.state in ('pending', 'held')
        and (?1 is null or p.topic = ?1)
        and (?2 is null or p.reason = ?2)
    order by p.id
    limit ?3
)
returning id

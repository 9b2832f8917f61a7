-- Makes messages dead that wait: $1 topic, $2 reason (null: any), $3 at most how many, oldest first.
-- The array is an InitPlan: it runs once, and the update is an index search by id.
update {table} as m
set state = 'dead',
    lease_id = null,
    reason = 'discarded',
    last_error = 'discarded by a person',
    dead_at = now()
where m.id = any (array(
    select p.id
    from {table} as p
    where p.state in ('pending', 'held')
        and ($1::text is null or p.topic = $1)
        and ($2::text is null or p.reason = $2)
    order by p.id
    limit $3
    for update skip locked
))
    and m.state in ('pending', 'held')
returning m.id

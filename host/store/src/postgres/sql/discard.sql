-- Makes messages dead that wait: $1 topic, $2 reason (null: any), $3 at most how many, oldest first. A key
-- goes on without the one at its head.
-- The array is an InitPlan: it runs once, and the update is an index search by id.
with discarded as (
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
    returning m.id, m.topic, m.key
),
freed as (
    update {keys} as k
    set head = null,
        free_at = now()
    from discarded as d
    where k.topic = any (array(select discarded.topic from discarded))
        and k.key = any (array(select discarded.key from discarded))
        and k.topic = d.topic
        and k.key = d.key
        and k.head = d.id
)
select id from discarded

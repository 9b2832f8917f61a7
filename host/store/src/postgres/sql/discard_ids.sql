-- Makes live messages dead: $1 ids, $2 at most how many. One that is being processed loses its lease. A key goes
-- on without the one at its head.
with discarded as (
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

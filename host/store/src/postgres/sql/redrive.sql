-- Sends dead letters round again: $1 topic, $2 reason (null: any), $3 at most how many, $4 milliseconds from one to the next,
-- $5 until the first.
-- Oldest death first. An expiry that has passed is lifted, or the message would die at once.
with chosen as (
    select o.id, row_number() over (order by o.dead_at, o.id) - 1 as place
    from (
        select d.id, d.dead_at
        from {table} as d
        where d.state = 'dead'
            and ($1::text is null or d.topic = $1)
            and ($2::text is null or d.reason = $2)
        order by d.dead_at, d.id
        limit $3
        for update skip locked
    ) as o
)
update {table} as m
set state = 'pending',
    attempts = 0,
    lapses = 0,
    lease_id = null,
    dead_at = null,
    expires_at = case when m.expires_at <= now() then null else m.expires_at end,
    available_at = now() + ($5 + least(chosen.place * $4, 3153600000000)) * interval '1 millisecond'
from chosen
where m.id = chosen.id
    and m.state = 'dead'

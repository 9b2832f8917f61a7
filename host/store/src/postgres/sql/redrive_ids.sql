-- Sends dead letters round again: $1 ids, $2 at most how many, $3 milliseconds from one to the next, $4 until the first. Oldest death first.
with chosen as (
    select o.id, row_number() over (order by o.dead_at, o.id) - 1 as place
    from (
        select d.id, d.dead_at
        from {table} as d
        where d.id = any ($1::uuid[])
            and d.state = 'dead'
        order by d.dead_at, d.id
        limit $2
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
    available_at = now() + ($4 + least(chosen.place * $3, 3153600000000)) * interval '1 millisecond'
from chosen
where m.id = chosen.id
    and m.state = 'dead'

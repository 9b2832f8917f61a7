-- Sends dead letters round again: ?1 ids as JSON, ?2 at most how many, ?3 milliseconds from one to the next, ?4 until the first.
-- Oldest death first.
with clock (now) as materialized (select cast(round(unixepoch('now', 'subsec') * 1000) as integer)),
chosen as materialized (
    select d.id, row_number() over (order by d.dead_at, d.id) - 1 as place
    from {table} as d
    where d.id in (select value from json_each(?1))
        and d.state = 'dead'
    order by d.dead_at, d.id
    limit ?2
)
update {table} as m
set state = 'pending',
    attempts = 0,
    lapses = 0,
    lease_id = null,
    dead_at = null,
    expires_at = case when m.expires_at <= (select now from clock) then null else m.expires_at end,
    available_at = (select now from clock) + ?4 + min(chosen.place * ?3, 3153600000000)
from chosen
where m.id = chosen.id

-- Sends dead letters round again: ?1 topic, ?2 reason (null: any), ?3 at most how many, ?4 milliseconds from one to the next,
-- ?5 until the first.
-- Oldest death first. An expiry that has passed is lifted, or the message would die at once.
with clock (now) as materialized (select cast(round(unixepoch('now', 'subsec') * 1000) as integer)),
chosen as materialized (
    select d.id, row_number() over (order by d.dead_at, d.id) - 1 as place
    from {table} as d
    where d.state = 'dead'
        and (?1 is null or d.topic = ?1)
        and (?2 is null or d.reason = ?2)
    order by d.dead_at, d.id
    limit ?3
)
update {table} as m
set state = 'pending',
    attempts = 0,
    lapses = 0,
    lease_id = null,
    dead_at = null,
    expires_at = case when m.expires_at <= (select now from clock) then null else m.expires_at end,
    available_at = (select now from clock) + ?5 + min(chosen.place * ?4, 3153600000000)
from chosen
where m.id = chosen.id

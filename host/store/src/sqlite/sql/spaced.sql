-- Topics of which something is due that only waits until the next call of its key may begin, and for how many milliseconds.
with clock (now) as materialized (select cast(round(unixepoch('now', 'subsec') * 1000) as integer))
select
    k.topic,
    min(k.free_at) - (select now from clock) as wait_ms
from {keys} as k
where k.head is null
    and k.free_at > (select now from clock)
    and k.cause = 'rate'
    and exists (
        select 1
        from {table} as o
        where o.topic = k.topic
            and o.key = k.key
            and o.state in ('pending', 'held')
            and o.available_at <= (select now from clock)
    )
    and not exists (select 1 from {control} as c where c.topic = k.topic and c.key = '' and c.paused_at is not null)
group by k.topic

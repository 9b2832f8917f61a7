-- Topics of which something is due that only waits until the next call of its key may begin, and for how many milliseconds.
select
    k.topic,
    (extract(epoch from min(k.free_at) - clock_timestamp()) * 1000)::bigint + 1 as wait_ms
from {keys} as k
where k.is_free
    and k.free_at > clock_timestamp()
    and k.cause = 'rate'
    and exists (
        select
        from {table} as o
        where o.topic = k.topic
            and o.key = k.key
            and o.state in ('pending', 'held')
            and o.available_at <= now()
    )
    and not exists (select from {control} as c where c.topic = k.topic and c.key = '' and c.paused_at is not null)
group by k.topic

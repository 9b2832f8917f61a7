-- Each topic's numbers. Of two errors the one that was written last counts: the history says when.
with counted as (
    select
        m.topic,
        count(*) filter (where m.state = 'pending') as pending,
        count(*) filter (where m.state = 'processing') as processing,
        count(*) filter (where m.state = 'held') as held,
        count(*) filter (where m.state = 'delivered') as delivered,
        count(*) filter (where m.state = 'dead') as dead,
        min(m.available_at) filter (where m.state in ('pending', 'processing') and m.available_at <= now()) as oldest_due,
        max(lpad(coalesce(m.history -> -1 ->> 'at_ms', '0'), 20, '0') || m.id::text)
            filter (where m.last_error is not null and m.state <> 'delivered') as failed_last
    from {table} as m
    group by m.topic
)
select
    coalesce(counted.topic, paused.topic) as topic,
    coalesce(counted.pending, 0) as pending,
    coalesce(counted.processing, 0) as processing,
    coalesce(counted.held, 0) as held,
    coalesce(counted.delivered, 0) as delivered,
    coalesce(counted.dead, 0) as dead,
    case
        when counted.oldest_due is not null then (extract(epoch from now() - greatest(counted.oldest_due, 'epoch')) * 1000)::bigint
    end as oldest_due_ms,
    (
        select count(*)
        from {keys} as k
        where k.topic = counted.topic
            and k.head is not null
            -- It is dead, or was deleted.
            and not exists (select from {table} as m where m.id = k.head and m.state in ('pending', 'processing', 'held'))
    ) as blocked_keys,
    (
        select count(*)
        from {keys} as k
        where k.topic = counted.topic
            -- Not now(): a settle that began later has written a later time where nothing rests.
            and k.free_at > clock_timestamp()
            -- What only spaces its calls is not sick.
            and k.cause <> 'rate'
            -- It counts as blocked.
            and not exists (select from {table} as m where m.id = k.head and m.state = 'dead')
    ) as resting_keys,
    paused.topic is not null as paused,
    (select f.last_error from {table} as f where f.id = substr(counted.failed_last, 21)::uuid) as last_error
from counted
full join (select c.topic from {control} as c where c.key = '' and c.paused_at is not null) as paused
    on paused.topic = counted.topic
order by 1

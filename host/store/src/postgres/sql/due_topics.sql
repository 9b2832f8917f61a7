-- The topics that have something due and are not paused, and for how many milliseconds: oldest due first.
-- Jumps from topic to topic in the index: thousands of topics cost as many probes, millions of rows cost nothing.
with recursive topics as (
    (
        select topic
        from {table}
        where state in ('pending', 'processing')
        order by topic
        limit 1
    )
    union all
    select (
        select o.topic
        from {table} as o
        where o.state in ('pending', 'processing')
            and o.topic > topics.topic
        order by o.topic
        limit 1
    )
    from topics
    where topics.topic is not null
)
select
    topics.topic,
    (extract(epoch from now() - greatest(oldest.available_at, 'epoch')) * 1000)::bigint as oldest_due_ms
from topics
cross join lateral (
    select o.available_at, o.id
    from {table} as o
    where o.topic = topics.topic
        and o.state in ('pending', 'processing')
        and o.available_at <= now()
    order by o.available_at, o.id
    limit 1
) as oldest
where not exists (select from {control} as c where c.topic = topics.topic and c.key = '' and c.paused_at is not null)
order by oldest.available_at, topics.topic

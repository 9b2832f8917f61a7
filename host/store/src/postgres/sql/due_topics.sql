-- The topics that have something due, or a key that may go on, and are not paused, and for how many milliseconds: oldest due
-- first.
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
),
free_topics as (
    (
        select topic
        from {keys}
        where is_free
        order by topic
        limit 1
    )
    union all
    select (
        select k.topic
        from {keys} as k
        where k.is_free
            and k.topic > free_topics.topic
        order by k.topic
        limit 1
    )
    from free_topics
    where free_topics.topic is not null
),
due as (
    select topics.topic, oldest.available_at as since
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
    union all
    select free_topics.topic, oldest.free_at
    from free_topics
    cross join lateral (
        select k.free_at
        from {keys} as k
        where k.topic = free_topics.topic
            and k.is_free
            and k.free_at <= now()
        order by k.free_at
        limit 1
    ) as oldest
)
select
    due.topic,
    (extract(epoch from now() - greatest(min(due.since), 'epoch')) * 1000)::bigint as oldest_due_ms
from due
where not exists (select from {control} as c where c.topic = due.topic and c.key = '' and c.paused_at is not null)
group by due.topic
order by min(due.since), due.topic

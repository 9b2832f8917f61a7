-- The topics that have something due and are not paused, and for how many milliseconds: oldest due first.
-- Jumps from topic to topic in the index: thousands of topics cost as many probes, millions of rows cost nothing.
with recursive clock (now) as materialized (select cast(round(unixepoch('now', 'subsec') * 1000) as integer)),
topics (topic) as (
    select min(o.topic)
    from {table} as o
    where o.state in ('pending', 'processing')
    union all
    select (
        select min(o.topic)
        from {table} as o
        where o.state in ('pending', 'processing')
            and o.topic > topics.topic
    )
    from topics
    where topics.topic is not null
),
oldest (topic, available_at) as (
    select
        topics.topic,
        (
            select min(o.available_at)
            from {table} as o
            where o.topic = topics.topic
                and o.state in ('pending', 'processing')
        )
    from topics
    where topics.topic is not null
)
select oldest.topic, (select now from clock) - oldest.available_at as oldest_due_ms
from oldest
where oldest.available_at <= (select now from clock)
    and not exists (select 1 from {control} as c where c.topic = oldest.topic and c.key = '' and c.paused_at is not null)
order by oldest.available_at, oldest.topic

-- The topics that have something due, or a key that may go on, and are not paused, and for how many milliseconds: oldest due
-- first.
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
free_topics (topic) as (
    select min(k.topic)
    from {keys} as k
    where k.head is null
    union all
    select (
        select min(k.topic)
        from {keys} as k
        where k.head is null
            and k.topic > free_topics.topic
    )
    from free_topics
    where free_topics.topic is not null
),
oldest (topic, since) as (
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
    union all
    select
        free_topics.topic,
        (
            select min(k.free_at)
            from {keys} as k
            where k.topic = free_topics.topic
                and k.head is null
        )
    from free_topics
    where free_topics.topic is not null
)
select oldest.topic, (select now from clock) - min(oldest.since) as oldest_due_ms
from oldest
where oldest.since <= (select now from clock)
    and not exists (select 1 from {control} as c where c.topic = oldest.topic and c.key = '' and c.paused_at is not null)
group by oldest.topic
order by min(oldest.since), oldest.topic

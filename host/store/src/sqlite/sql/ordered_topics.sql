-- The topics that have a key. Jumps from one to the next in the index.
with recursive topics (topic) as (
    select min(k.topic) from {keys} as k
    union all
    select (select min(k.topic) from {keys} as k where k.topic > topics.topic)
    from topics
    where topics.topic is not null
)
select topic from topics where topic is not null

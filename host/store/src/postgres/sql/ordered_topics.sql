-- The topics that have a key. Jumps from one to the next in the index.
with recursive topics as (
    (
        select topic
        from {keys}
        order by topic
        limit 1
    )
    union all
    select (
        select k.topic
        from {keys} as k
        where k.topic > topics.topic
        order by k.topic
        limit 1
    )
    from topics
    where topics.topic is not null
)
select topic from topics where topic is not null

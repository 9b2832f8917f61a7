-- The keys that have been free longest: ?1 topics as JSON, ?2 how many of each.
with clock (now) as materialized (select cast(round(unixepoch('now', 'subsec') * 1000) as integer))
select k.topic, k.key
from json_each(?1) as lane,
    json_each((
        select json_group_array(head.rowid)
        from (
            select f.rowid
            from {keys} as f
            where f.topic = lane.value
                and f.head is null
                and f.free_at <= (select now from clock)
            order by f.free_at, f.key
            limit ?2
        ) as head
    )) as free
cross join {keys} as k
where k.rowid = free.value

-- Adds the keys of due messages of ordered topics that are not there yet: ?1 topics as JSON, ?2 how many messages of each to look
-- at.
with clock (now) as materialized (select cast(round(unixepoch('now', 'subsec') * 1000) as integer))
insert into {keys} (topic, key, free_at)
select distinct o.topic, o.key, (select now from clock)
from json_each(?1) as lane,
    json_each((
        select json_group_array(head.id)
        from (
            select o.id
            from {table} as o
            where o.topic = lane.value
                and o.state in ('pending', 'processing')
                and o.available_at <= (select now from clock)
            order by o.available_at, o.id
            limit ?2
        ) as head
    )) as due
cross join {table} as o
where o.id = due.value
    and o.key is not null
on conflict do nothing

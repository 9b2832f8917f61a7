-- Adds the keys of due messages of ordered topics that are not there yet: $1 topics, $2 how many messages of each to look at.
-- In order, so that two who add the same keys wait for each other in the same direction.
insert into {keys} (topic, key)
select distinct due.topic, due.key
from unnest($1::text[]) as asked (topic)
cross join lateral (
    select o.topic, o.key
    from {table} as o
    where o.topic = asked.topic
        and o.state in ('pending', 'processing')
        and o.available_at <= now()
    order by o.available_at, o.id
    limit $2
) as due
where due.key is not null
    and (select k.holds from {keys} as k where k.topic = due.topic and k.key = due.key) is null
order by due.topic, due.key
on conflict do nothing

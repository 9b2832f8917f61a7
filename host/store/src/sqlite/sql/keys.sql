-- The keys of topics that are ordered or limited by key and what is at their head, those that wait longest first: ?1 topic, ?2
-- state (null: any), ?3 how many, ?4 how many waiting messages to count at most.
with clock (now) as materialized (select cast(round(unixepoch('now', 'subsec') * 1000) as integer))
select topic, key, state, head, since_ms, reason, error, due_in_ms,
    (
        select count(*)
        from (
            select 1
            from {table} as o
            where o.topic = found.topic
                and o.key = found.key
                and o.state in ('pending', 'held')
                and o.id is not found.head
            limit ?4
        ) as behind
    ) as depth
from (
    select
        k.topic,
        k.key,
        k.head,
        case
            when k.free_at > (select now from clock) and m.state is not 'dead' then 'paused'
            when k.head is null then 'ready'
            when m.state in ('pending', 'held') and m.available_at > (select now from clock) then 'waiting'
            when m.state in ('pending', 'held') then 'ready'
            when m.state = 'processing' then 'processing'
            else 'blocked'
        end as state,
        case
            when k.head is null then min(k.free_at, (select now from clock))
            when m.state = 'dead' then m.dead_at
            else m.created_at
        end as since_ms,
        -- Why it rests says more than why the last call failed.
        case when k.free_at > (select now from clock) and m.state is not 'dead' then k.cause else m.reason end as reason,
        m.last_error as error,
        case
            when k.free_at > (select now from clock) and m.state is not 'dead' then k.free_at - (select now from clock)
            when m.state = 'pending' and m.available_at > (select now from clock) then m.available_at - (select now from clock)
        end as due_in_ms
    from {keys} as k
    left join {table} as m on m.id = k.head
    where ?1 is null or k.topic = ?1
) as found
where ?2 is null or found.state = ?2
order by since_ms, topic, key
limit ?3

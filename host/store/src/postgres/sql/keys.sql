-- The keys of topics that are ordered or limited by key and what is at their head, those that wait longest first: $1 topic, $2
-- state (null: any), $3 how many, $4 how many waiting messages to count at most.
-- clock_timestamp(), not now(): a settle that ended since this statement began has freed a key later than that.
select topic, key, state, head, since_ms, reason, error, due_in_ms,
    (
        select count(*)
        from (
            select
            from {table} as o
            where o.topic = found.topic
                and o.key = found.key
                and o.state in ('pending', 'held')
                and o.id is distinct from found.head_id
            limit $4
        ) as behind
    ) as depth
from (
    select
        k.topic,
        k.key,
        k.head as head_id,
        k.head::text as head,
        case
            when k.free_at > clock_timestamp() and m.state is distinct from 'dead' then 'paused'
            when k.head is null then 'ready'
            when m.state in ('pending', 'held') and m.available_at > now() then 'waiting'
            when m.state in ('pending', 'held') then 'ready'
            when m.state = 'processing' then 'processing'
            else 'blocked'
        end as state,
        (extract(epoch from case
            when k.head is null then least(k.free_at, now())
            when m.state = 'dead' then m.dead_at
            else least(greatest(m.created_at, 'epoch'), '9999-12-31 00:00:00+00')
        end) * 1000)::bigint as since_ms,
        -- Why it rests says more than why the last call failed.
        case when k.free_at > clock_timestamp() and m.state is distinct from 'dead' then k.cause else m.reason end as reason,
        m.last_error as error,
        case
            when k.free_at > clock_timestamp() and m.state is distinct from 'dead' then (extract(epoch from k.free_at - now()) * 1000)::bigint
            when m.state = 'pending' and m.available_at > now()
                then (extract(epoch from least(m.available_at, '9999-12-31 00:00:00+00') - now()) * 1000)::bigint
        end as due_in_ms
    from {keys} as k
    left join {table} as m on m.id = k.head
    where $1::text is null or k.topic = $1
) as found
where $2::text is null or found.state = $2
order by since_ms, topic, key
limit $3

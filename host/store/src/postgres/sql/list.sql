-- A page of messages without their payloads, newest first: $1 state, $2 topic, $3 reason, $4 the last id of the page before,
-- $5 how many. Null matches everything.
select
    m.id::text as id,
    m.topic,
    m.key,
    m.state,
    m.attempts::bigint as attempts,
    m.lapses::bigint as lapses,
    m.reason,
    m.last_error,
    (extract(epoch from least(greatest(m.created_at, 'epoch'), '9999-12-31 00:00:00+00')) * 1000)::bigint as created_at_ms,
    (extract(epoch from least(greatest(m.available_at, 'epoch'), '9999-12-31 00:00:00+00')) * 1000)::bigint as available_at_ms,
    case
        when m.expires_at is not null
            then (extract(epoch from least(greatest(m.expires_at, 'epoch'), '9999-12-31 00:00:00+00')) * 1000)::bigint
    end as expires_at_ms,
    (extract(epoch from m.delivered_at) * 1000)::bigint as delivered_at_ms,
    (extract(epoch from m.dead_at) * 1000)::bigint as dead_at_ms
from {table} as m
where ($1::text is null or m.state = $1)
    and ($2::text is null or m.topic = $2)
    and ($3::text is null or m.reason = $3)
    and ($4::uuid is null or m.id < $4)
order by m.id desc
limit $5

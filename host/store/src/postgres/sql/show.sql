-- One message with everything that is known of it: $1 its id, $2 the largest payload to load.
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
    (extract(epoch from m.dead_at) * 1000)::bigint as dead_at_ms,
    m.dedup_key,
    m.headers::text as headers,
    case
        when octet_length(m.payload::text) > $2 then null
        when pg_typeof(m.payload) = 'bytea'::regtype then decode(substr(m.payload::text, 3), 'hex')
        else convert_to(m.payload::text, 'UTF8')
    end as payload,
    octet_length(m.payload::text)::bigint as payload_bytes,
    m.history::text as history
from {table} as m
where m.id = $1

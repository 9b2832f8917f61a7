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
    -- The wire form of a row of one column, less its head (12 bytes, and the version byte of jsonb): the very bytes of a payload
    -- of any type.
    case
        when octet_length(record_send(row(m.payload))) - 12 <= $2
            then substr(record_send(row(m.payload)), case when pg_typeof(m.payload) = 'jsonb'::regtype then 14 else 13 end)
    end as payload,
    octet_length(record_send(row(m.payload)))::bigint - case when pg_typeof(m.payload) = 'jsonb'::regtype then 13 else 12 end
        as payload_bytes,
    m.history::text as history
from {table} as m
where m.id = $1

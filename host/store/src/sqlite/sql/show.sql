-- One message with everything that is known of it: ?1 its id, ?2 the largest payload to load.
select
    m.id,
    m.topic,
    m.key,
    m.state,
    m.attempts,
    m.lapses,
    m.reason,
    m.last_error,
    m.created_at as created_at_ms,
    m.available_at as available_at_ms,
    m.expires_at as expires_at_ms,
    m.delivered_at as delivered_at_ms,
    m.dead_at as dead_at_ms,
    m.dedup_key,
    m.headers,
    case when octet_length(m.payload) > ?2 then null else cast(m.payload as blob) end as payload,
    octet_length(m.payload) as payload_bytes,
    m.history
from {table} as m
where m.id = ?1

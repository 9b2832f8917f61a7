-- A page of messages without their payloads, newest first: ?1 state, ?2 topic, ?3 reason, ?4 the last id of the page before,
-- ?5 how many. Null matches everything.
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
    m.dead_at as dead_at_ms
from {table} as m
where (?1 is null or m.state = ?1)
    and (?2 is null or m.topic = ?2)
    and (?3 is null or m.reason = ?3)
    and (?4 is null or m.id < ?4)
order by m.id desc
limit ?5

-- Inserts messages, skips those whose dedup key is taken, and returns the ids of the inserted: ?1 messages as JSON, each
-- payload as text within.
insert into {table} (id, topic, key, payload, headers, dedup_key, available_at, expires_at)
select
    n.value ->> 'id',
    n.value ->> 'topic',
    n.value ->> 'key',
    n.value ->> 'payload',
    n.value ->> 'headers',
    n.value ->> 'dedup_key',
    cast(round(unixepoch('now', 'subsec') * 1000) as integer) + (n.value ->> 'delay_ms'),
    cast(round(unixepoch('now', 'subsec') * 1000) as integer) + (n.value ->> 'expires_ms')
from json_each(?1) as n
where true
on conflict do nothing
returning id

-- Inserts messages, skips those whose dedup key is taken, and returns the ids of the inserted: $1 ids, $2 topics, $3 keys,
-- $4 payloads, $5 headers, $6 dedup keys, $7 milliseconds until due, $8 milliseconds until they expire.
insert into {table} (id, topic, key, payload, headers, dedup_key, available_at, expires_at)
select
    n.id, n.topic, n.key, n.payload::json, n.headers::jsonb, n.dedup_key,
    now() + n.delay_ms * interval '1 millisecond',
    now() + n.expires_ms * interval '1 millisecond'
from unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::bigint[], $8::bigint[])
    as n (id, topic, key, payload, headers, dedup_key, delay_ms, expires_ms)
on conflict do nothing
returning id::text as id

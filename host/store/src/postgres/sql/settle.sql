-- Writes what became of messages whose lease is still held and returns them: $1 ids, $2 lease ids, $3 states (or
-- 'deleted'), $4 milliseconds until due again, $5 reasons, $6 errors, $7 entries of the history, $8 which of them free their key,
-- $9 milliseconds that their keys rest.
with settled as (
    select *
    from unnest($1::uuid[], $2::uuid[], $3::text[], $4::bigint[], $5::text[], $6::text[], $7::text[], $8::boolean[], $9::bigint[])
        as s (id, lease_id, state, after_ms, reason, error, entry, frees, rest_ms)
),
deleted as (
    delete from {table} as m
    using settled as s
    where s.state = 'deleted'
        and m.id = any ($1::uuid[])
        and m.id = s.id
        and m.lease_id = s.lease_id
        and m.state = 'processing'
    returning s.id, s.lease_id, s.frees, s.rest_ms, m.topic, m.key
),
updated as (
    update {table} as m
    set state = s.state,
        available_at = case when s.state = 'pending' then now() + s.after_ms * interval '1 millisecond' else m.available_at end,
        lease_id = null,
        lapses = 0,
        reason = s.reason,
        last_error = s.error,
        delivered_at = case when s.state = 'delivered' then now() end,
        dead_at = case when s.state = 'dead' then now() end,
        history = case when jsonb_array_length(m.history) < 20 then m.history else m.history - 0 end
            || jsonb_build_array(s.entry::jsonb || jsonb_build_object('at_ms', (extract(epoch from now()) * 1000)::bigint))
    from settled as s
    where s.state <> 'deleted'
        and m.id = any ($1::uuid[])
        and m.id = s.id
        and m.lease_id = s.lease_id
        and m.state = 'processing'
    returning s.id, s.lease_id, s.frees, s.rest_ms, m.topic, m.key
),
ended as (
    select id, topic, key, rest_ms from deleted where frees and key is not null
    union all
    select id, topic, key, rest_ms from updated where frees and key is not null
),
freed as (
    update {keys} as k
    set head = null,
        free_at = now() + ended.rest_ms * interval '1 millisecond'
    from ended
    where k.topic = any (array(select ended.topic from ended))
        and k.key = any (array(select ended.key from ended))
        and k.topic = ended.topic
        and k.key = ended.key
        and k.head = ended.id
)
select id::text as id, lease_id::text as lease_id from deleted
union all
select id::text as id, lease_id::text as lease_id from updated

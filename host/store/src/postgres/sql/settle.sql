-- Writes what became of messages whose lease is still held and returns them: $1 ids, $2 lease ids, $3 states (or
-- 'deleted'), $4 milliseconds until due again, $5 reasons, $6 errors, $7 entries of the history, $8 which of them free their key,
-- $9 milliseconds that their keys rest, $10 why, $11 how many calls of the key its target has failed in a row (null: as many as
-- before).
-- One statement may settle several messages of one key: their parts are added up first, since an update changes a row once.
with settled as (
    select *
    from unnest(
        $1::uuid[], $2::uuid[], $3::text[], $4::bigint[], $5::text[], $6::text[], $7::text[], $8::boolean[], $9::bigint[],
        $10::text[], $11::bigint[]
    ) as s (id, lease_id, state, after_ms, reason, error, entry, frees, rest_ms, cause, failures)
),
deleted as (
    delete from {table} as m
    using settled as s
    where s.state = 'deleted'
        and m.id = any ($1::uuid[])
        and m.id = s.id
        and m.lease_id = s.lease_id
        and m.state = 'processing'
    returning s.id, s.lease_id, s.frees, s.rest_ms, s.cause, s.failures, m.topic, m.key
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
    returning s.id, s.lease_id, s.frees, s.rest_ms, s.cause, s.failures, m.topic, m.key
),
told as (
    select * from deleted
    union all
    select * from updated
),
of_key as (
    select
        t.topic,
        t.key,
        array_agg(t.id) as ids,
        coalesce(array_agg(t.id) filter (where t.frees), '{}') as ended,
        max(t.rest_ms) as rest_ms,
        (array_agg(t.cause order by t.rest_ms desc))[1] as cause,
        case when min(t.failures) = 0 then 0 else max(t.failures) end as failures
    from told as t
    where t.key is not null
        and (t.frees or t.rest_ms > 0 or t.failures is not null)
    group by t.topic, t.key
),
-- In one order: otherwise two of these statements could wait for each other's keys in a circle. The arrays below are read before
-- the first key is changed, so all of them are locked by then.
locked as materialized (
    select k.topic, k.key
    from of_key as o
    join {keys} as k on k.topic = o.topic and k.key = o.key
    where k.topic = any (array(select of_key.topic from of_key))
        and k.key = any (array(select of_key.key from of_key))
        and (k.head = any (o.ids) or k.turns && o.ids)
    order by k.topic, k.key
    for no key update of k
),
noted as (
    update {keys} as k
    set head = case when k.head = any (o.ended) or k.turns && o.ended then null else k.head end,
        turns = case
            when k.turns && o.ended then array(select t.id from unnest(k.turns) as t (id) where t.id <> all (o.ended))
            else k.turns
        end,
        free_at = case
            when o.rest_ms > 0 or k.head = any (o.ended) or k.turns && o.ended
                then greatest(k.free_at, now() + o.rest_ms * interval '1 millisecond')
            else k.free_at
        end,
        cause = case
            -- The longest rest says why.
            when o.rest_ms > 0 and now() + o.rest_ms * interval '1 millisecond' >= k.free_at then o.cause
            else k.cause
        end,
        failures = case when o.failures > 0 then greatest(k.failures, o.failures) else coalesce(o.failures, k.failures) end
    from of_key as o
    where k.topic = any (array(select locked.topic from locked))
        and k.key = any (array(select locked.key from locked))
        and k.topic = o.topic
        and k.key = o.key
        and (k.head = any (o.ids) or k.turns && o.ids)
)
select id::text as id, lease_id::text as lease_id from deleted
union all
select id::text as id, lease_id::text as lease_id from updated

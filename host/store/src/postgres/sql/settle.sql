-- Writes what became of messages whose lease is still held and returns them: $1 ids, $2 lease ids, $3 states (or
-- 'deleted'), $4 milliseconds until due again, $5 reasons, $6 errors, $7 entries of the history, $8 which of them free their key,
-- $9 milliseconds that their keys rest, $10 why, $11 how many calls of the key its target has failed in a row (null: as many as
-- before), $12 which of them are of a topic that is in order.
-- One statement may settle several messages of one key: their parts are added up first, since an update changes a row once.
with settled as (
    select *
    from unnest(
        $1::uuid[], $2::uuid[], $3::text[], $4::bigint[], $5::text[], $6::text[], $7::text[], $8::boolean[], $9::bigint[],
        $10::text[], $11::bigint[], $12::boolean[]
    ) as s (id, lease_id, state, after_ms, reason, error, entry, frees, rest_ms, cause, failures, in_order)
),
deleted as (
    delete from {table} as m
    using settled as s
    where s.state = 'deleted'
        and m.id = any ($1::uuid[])
        and m.id = s.id
        and m.lease_id = s.lease_id
        and m.state = 'processing'
    returning s.id, s.lease_id, s.frees, s.rest_ms, s.cause, s.failures, s.in_order, m.topic, m.key
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
    returning s.id, s.lease_id, s.frees, s.rest_ms, s.cause, s.failures, s.in_order, m.topic, m.key
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
        (array_agg(t.cause order by t.rest_ms desc))[1] as rest_cause,
        case when min(t.failures) = 0 then 0 else max(t.failures) end as failed,
        array_agg(t.id) filter (where t.frees and t.in_order) as in_order
    from told as t
    where t.key is not null
        and (t.frees or t.rest_ms > 0 or t.failures is not null)
    group by t.topic, t.key
),
-- In one order: otherwise two of these statements could wait for each other's keys in a circle. Each is looked up by itself, and
-- written by what the primary key finds: the planner knows nothing of how many there are.
locked as materialized (
    select k.*, o.ids, o.ended, o.rest_ms, o.rest_cause, o.failed, o.in_order
    from (select * from of_key order by of_key.topic, of_key.key) as o
    cross join lateral (
        select l.topic, l.key, l.head, l.turns, l.free_at, l.cause, l.failures
        from {keys} as l
        where l.topic = o.topic
            and l.key = o.key
            and (l.head = any (o.ids) or l.turns && o.ids)
        for no key update of l
    ) as k
),
-- The next of a key in order has its turn at once, as arrange.sql would give it: that spares the key a second write.
chosen as materialized (
    select
        l.topic,
        l.key,
        (
            select m.id
            from {table} as m
            where m.topic = l.topic
                and m.key = l.key
                and m.state in ('pending', 'held')
            order by m.seq, m.id
            limit 1
        ) as first
    from locked as l
    where l.head = any (l.in_order)
        and l.turns = '{}'
        and l.rest_ms = 0
        and l.free_at <= now()
),
-- It may have ended meanwhile: then its state says so once it is locked. What is locked is left for arrange.sql.
next as materialized (
    select m.id, m.state
    from {table} as m
    where m.id = any (array(select chosen.first from chosen where chosen.first is not null))
        and m.state in ('pending', 'held')
    for update skip locked
),
turn as materialized (
    select c.topic, c.key, c.first
    from chosen as c
    join next as n on n.id = c.first
),
let_go as (
    update {table} as m
    set state = 'pending'
    where m.id = any (array(select next.id from next where next.state = 'held'))
),
noted as (
    insert into {keys} as k (topic, key, head, turns, free_at, cause, failures)
    select
        l.topic,
        l.key,
        case when l.head = any (l.ended) or l.turns && l.ended then t.first else l.head end,
        case
            when l.turns && l.ended then array(select o.id from unnest(l.turns) as o (id) where o.id <> all (l.ended))
            else l.turns
        end,
        case
            -- Unchanged where the next one goes on: then the update stays in its page.
            when t.first is not null then l.free_at
            when l.rest_ms > 0 or l.head = any (l.ended) or l.turns && l.ended
                then greatest(l.free_at, now() + l.rest_ms * interval '1 millisecond')
            else l.free_at
        end,
        case
            -- The longest rest says why.
            when l.rest_ms > 0 and now() + l.rest_ms * interval '1 millisecond' >= l.free_at then l.rest_cause
            else l.cause
        end,
        case when l.failed > 0 then greatest(l.failures, l.failed) else coalesce(l.failed, l.failures) end
    from locked as l
    left join turn as t on t.topic = l.topic and t.key = l.key
    on conflict (topic, key) do update
    set head = excluded.head,
        turns = excluded.turns,
        free_at = excluded.free_at,
        cause = excluded.cause,
        failures = excluded.failures
)
select id, lease_id from deleted
union all
select id, lease_id from updated

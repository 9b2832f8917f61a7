-- Leases due messages of topics where so many messages of a key may be under way at once, and returns them: $1 topics, $2 how
-- many of each, $3 milliseconds of lease, $4 largest payload, $5 most leases lost, $6 how many due messages of each to look at,
-- $7 so many failures in a row of a key's target after which a single call tries it.
-- As claim_ordered.sql, but of the messages that have a key those whose turn it is. A retry ends a turn: so keys are seen as they
-- are now, and nothing changes them until this is written. What is locked is left for the next time.
update {table} as m
set state = 'processing',
    attempts = least(m.attempts, 2147483646) + 1,
    lapses = least(m.lapses, 2147483646) + case when m.state = 'processing' then 1 else 0 end,
    available_at = now() + $3 * interval '1 millisecond',
    lease_id = gen_random_uuid(),
    -- Tells a person why it runs again, and the relay that this claim took over a lost lease: no old value is returned.
    reason = case when m.state = 'processing' then 'lapsed' else m.reason end,
    last_error = case when m.state = 'processing' then 'a lease was lost without a result' else m.last_error end
where m.id = any (array(
    select due.id
    from (
        select
            asked.topic,
            case
                when exists (select from {control} as c where c.topic = asked.topic and c.key = '' and c.paused_at is not null) then 0
                else asked.slots
            end as slots
        from unnest($1::text[], $2::bigint[]) as asked (topic, slots)
    ) as lane
    cross join lateral (
        select o.id
        from {table} as o
        where o.id = any (array(
                select w.id
                from (
                    select d.id, d.topic, d.key
                    from {table} as d
                    where d.topic = lane.topic
                        and d.state in ('pending', 'processing')
                        and d.available_at <= now()
                        and d.lapses::bigint + case when d.state = 'processing' then 1 else 0 end <= $5
                    order by d.available_at, d.id
                    limit $6
                ) as w
                where w.key is null
                    or (
                        select w.id = any (k.turns) and k.free_at <= now() and (k.failures < $7 or w.id = k.head)
                        from {keys} as k
                        where k.topic = w.topic
                            and k.key = w.key
                        for share skip locked
                    )
                -- Some more, for those that another relay claims at this moment.
                limit lane.slots + case when lane.slots > 0 then 64 else 0 end
            ))
            and o.state in ('pending', 'processing')
            and o.available_at <= now()
            and o.lapses::bigint + case when o.state = 'processing' then 1 else 0 end <= $5
        order by o.available_at, o.id
        limit lane.slots
        for update skip locked
    ) as due
))
returning
    m.id,
    m.topic,
    m.key,
    -- The wire form of a row of one column, less its head (12 bytes, and the version byte of jsonb): the very bytes of a payload
    -- of any type.
    case
        when octet_length(record_send(row(m.payload))) - 12 <= $4
            then substr(record_send(row(m.payload)), case when pg_typeof(m.payload) = 'jsonb'::regtype then 14 else 13 end)
    end as payload,
    octet_length(record_send(row(m.payload)))::bigint - case when pg_typeof(m.payload) = 'jsonb'::regtype then 13 else 12 end
        as payload_bytes,
    m.headers::text as headers,
    (date_part('epoch', least(greatest(m.created_at, 'epoch'), '9999-12-31 00:00:00+00')) * 1000)::bigint as created_at_ms,
    m.lease_id,
    m.attempts::bigint as attempts,
    m.lapses::bigint as lapses,
    -- By the index of keys that fail, which mostly has none.
    coalesce((select k.failures from {keys} as k where k.topic = m.topic and k.key = m.key and k.failures > 0), 0)::bigint
        as key_failures,
    m.reason is not distinct from 'lapsed' as lapsed,
    coalesce(m.expires_at <= now(), false) as expired

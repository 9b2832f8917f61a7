-- Leases due messages of ordered topics and returns them: ?1 lanes as JSON, ?2 the largest lane's slots, ?3 milliseconds of lease,
-- ?4 largest payload, ?5 most leases lost, ?6 how many due messages of each to look at.
-- As claim.sql, but of the messages that have a key only the heads of their keys. What is due and is not is on its way out of
-- here, see hold.sql: so few rows are looked at in vain.
with clock (now) as materialized (select cast(round(unixepoch('now', 'subsec') * 1000) as integer))
update {table} as m
set state = 'processing',
    attempts = min(m.attempts, 2147483646) + 1,
    lapses = min(m.lapses, 2147483646) + (m.state = 'processing'),
    available_at = (select now from clock) + ?3,
    lease_id = lower(hex(randomblob(16))),
    -- Tells a person why it runs again, and the relay that this claim took over a lost lease: no old value is returned.
    reason = case when m.state = 'processing' then 'lapsed' else m.reason end,
    last_error = case when m.state = 'processing' then 'a lease was lost without a result' else m.last_error end
where m.id in (
    select due.value
    from json_each(?1) as lane,
        json_each((
            select json_group_array(head.id)
            from (
                select w.id
                from (
                    select o.id, o.topic, o.key
                    from {table} as o
                    where o.topic = lane.value ->> 'topic'
                        and o.state in ('pending', 'processing')
                        and o.available_at <= (select now from clock)
                        and o.lapses + (o.state = 'processing') <= ?5
                    order by o.available_at, o.id
                    limit ?6
                ) as w
                where w.key is null
                    -- Turns are from before the topic was ordered: end_turns.sql ends them first.
                    or exists (
                        select 1 from {keys} as k where k.topic = w.topic and k.key = w.key and k.head = w.id and k.turns = '[]'
                    )
                limit ?2
            ) as head
        )) as due
    where due.key < lane.value ->> 'slots'
        and not exists (
            select 1 from {control} as c where c.topic = lane.value ->> 'topic' and c.key = '' and c.paused_at is not null
        )
)
returning
    id,
    topic,
    key,
    case when octet_length(payload) > ?4 then null else cast(payload as blob) end as payload,
    octet_length(payload) as payload_bytes,
    headers,
    created_at as created_at_ms,
    lease_id,
    attempts,
    lapses,
    coalesce((select k.failures from {keys} as k where k.topic = {table_unqualified}.topic and k.key = {table_unqualified}.key), 0) as key_failures,
    reason is 'lapsed' as lapsed,
    coalesce(expires_at <= cast(round(unixepoch('now', 'subsec') * 1000) as integer), 0) as expired

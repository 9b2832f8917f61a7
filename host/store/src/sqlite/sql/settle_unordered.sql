-- Deletes delivered messages whose lease is still held, but those that are the heads of their keys, and returns them:
-- ?1 settlements as JSON.
delete from {table} as m
where (m.id, m.lease_id) in (
    select s.value ->> 'id', s.value ->> 'lease_id'
    from json_each(?1) as s
    where s.value ->> 'state' = 'deleted'
)
    and m.state = 'processing'
    and (
        m.key is null
        or not exists (select 1 from {keys} as k where k.topic = m.topic and k.key = m.key and k.head = m.id)
    )
returning id, lease_id

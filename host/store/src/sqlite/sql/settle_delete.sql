-- Deletes delivered messages whose lease is still held: ?1 settlements as JSON.
delete from {table} as m
where (m.id, m.lease_id) in (
    select s.value ->> 'id', s.value ->> 'lease_id'
    from json_each(?1) as s
    where s.value ->> 'state' = 'deleted'
)
    and m.state = 'processing'

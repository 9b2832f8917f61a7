-- Deletes delivered messages whose lease is still held, but those that their keys have to be told of: ?1 their lease ids by
-- their ids, as a JSON object.
delete from {table} as m
where (m.id, m.lease_id) in (select s.key, s.value from json_each(?1) as s)
    and m.state = 'processing'
    and (
        m.key is null
        or not exists (select 1 from {keys} as k where k.topic = m.topic and k.key = m.key and (k.head = m.id or k.turns <> '[]'))
    )

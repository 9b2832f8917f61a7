-- Deletes delivered messages whose lease is still held and returns them: $1 ids, $2 lease ids. What settle.sql does with
-- messages to delete, for a batch that has no others and no key that rests.
with deleted as (
    delete from {table} as m
    using unnest($1::uuid[], $2::uuid[]) as s (id, lease_id)
    where m.id = any ($1::uuid[])
        and m.id = s.id
        and m.lease_id = s.lease_id
        and m.state = 'processing'
    returning s.id, s.lease_id, m.topic, m.key
),
freed as (
    update {keys} as k
    set head = null,
        free_at = now()
    from deleted
    where k.topic = any (array(select deleted.topic from deleted where deleted.key is not null))
        and k.key = any (array(select deleted.key from deleted where deleted.key is not null))
        and k.topic = deleted.topic
        and k.key = deleted.key
        and k.head = deleted.id
)
select id::text as id, lease_id::text as lease_id from deleted

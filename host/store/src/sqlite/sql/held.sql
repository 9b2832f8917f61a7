-- The leases that are still held, of those asked for: ?1 ids and lease ids as JSON. A settle ends leases, and RETURNING tells
-- only what a row has become: so this is asked first, in the same transaction. And whether the message has a key.
select m.id, m.lease_id, m.key is not null as keyed
from json_each(?1) as held
cross join {table} as m
where m.id = held.value ->> 'id'
    and m.lease_id = held.value ->> 'lease_id'
    and m.state = 'processing'

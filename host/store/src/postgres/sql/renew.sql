-- Extends leases that are still held and returns them: $1 ids, $2 lease ids, $3 milliseconds of lease.
update {table} as m
set available_at = now() + $3 * interval '1 millisecond'
from unnest($1::uuid[], $2::uuid[]) as held (id, lease_id)
where m.id = any ($1::uuid[])
    and m.id = held.id
    and m.lease_id = held.lease_id
    and m.state = 'processing'
returning held.id, held.lease_id

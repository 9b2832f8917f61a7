-- Extends leases that are still held and returns them: ?1 ids and lease ids as JSON, ?2 milliseconds of lease.
update {table} as m
set available_at = cast(round(unixepoch('now', 'subsec') * 1000) as integer) + ?2
from json_each(?1) as held
where m.id = held.value ->> 'id'
    and m.lease_id = held.value ->> 'lease_id'
    and m.state = 'processing'
returning id, lease_id

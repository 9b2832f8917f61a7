-- Writes what became of messages whose lease is still held: ?1 settlements as JSON. Those to delete are
-- settle_delete.sql's.
update {table} as m
set state = s.value ->> 'state',
    available_at = case
        when s.value ->> 'state' = 'pending' then cast(round(unixepoch('now', 'subsec') * 1000) as integer) + (s.value ->> 'after_ms')
        else m.available_at
    end,
    lease_id = null,
    lapses = 0,
    reason = s.value ->> 'reason',
    last_error = s.value ->> 'error',
    delivered_at = case when s.value ->> 'state' = 'delivered' then cast(round(unixepoch('now', 'subsec') * 1000) as integer) end,
    dead_at = case when s.value ->> 'state' = 'dead' then cast(round(unixepoch('now', 'subsec') * 1000) as integer) end,
    history = json_insert(
        case when json_array_length(m.history) < 20 then m.history else json_remove(m.history, '$[0]') end,
        '$[#]',
        json_set(s.value -> 'entry', '$.at_ms', cast(round(unixepoch('now', 'subsec') * 1000) as integer))
    )
from json_each(?1) as s
where s.value ->> 'state' <> 'deleted'
    and m.id = s.value ->> 'id'
    and m.lease_id = s.value ->> 'lease_id'
    and m.state = 'processing'

-- Gives messages back whose lease is still held, the attempt unspent, lapses as they were,: ?1 as JSON.
update {table} as m
set state = 'pending',
    attempts = max(m.attempts - 1, 0),
    available_at = cast(round(unixepoch('now', 'subsec') * 1000) as integer) + (s.value ->> 'after_ms'),
    lease_id = null,
    reason = s.value ->> 'reason',
    last_error = s.value ->> 'error',
    history = json_insert(
        case when json_array_length(m.history) < 20 then m.history else json_remove(m.history, '$[0]') end,
        '$[#]',
        json_set(s.value -> 'entry', '$.at_ms', cast(round(unixepoch('now', 'subsec') * 1000) as integer))
    )
from json_each(?1) as s
where m.id = s.value ->> 'id'
    and m.lease_id = s.value ->> 'lease_id'
    and m.state = 'processing'

-- Holds messages whose turn it is not: ?1 ids as JSON.
update {table} as m
set state = 'held',
    -- One that is being processed is under a lease that was lost.
    lapses = min(m.lapses, 2147483646) + (m.state = 'processing'),
    lease_id = null
where m.id in (select value from json_each(?1))

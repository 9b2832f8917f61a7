-- Makes pending messages due now: $1 ids.
update {table} as m
set available_at = now()
where m.id = any ($1::uuid[])
    and m.state = 'pending'

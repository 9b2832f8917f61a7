-- Makes pending messages due now: ?1 ids as JSON.
update {table} as m
set available_at = cast(round(unixepoch('now', 'subsec') * 1000) as integer)
where m.id in (select value from json_each(?1))
    and m.state = 'pending'

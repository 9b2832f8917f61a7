-- Makes pending messages due now: ?1 ids as JSON, ?2 at most how many. One that has been due for a while keeps its place.
update {table} as m
set available_at = min(m.available_at, cast(round(unixepoch('now', 'subsec') * 1000) as integer))
where m.id in (
    select p.id
    from {table} as p
    where p.id in (select value from json_each(?1))
        and p.state = 'pending'
    order by p.id
    limit ?2
)

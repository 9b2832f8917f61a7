-- Makes pending messages due that are not yet: ?1 topic, ?2 reason (null: any), ?3 at most how many, oldest first.
with clock (now) as materialized (select cast(round(unixepoch('now', 'subsec') * 1000) as integer))
update {table} as m
set available_at = (select now from clock)
where m.id in (
    select p.id
    from {table} as p
    where p.state = 'pending'
        and p.available_at > (select now from clock)
        and (?1 is null or p.topic = ?1)
        and (?2 is null or p.reason = ?2)
    order by p.id
    limit ?3
)

-- Ends the turns that keys of due messages know from before their topic was ordered, where the head alone has its turn: ?1 topics as
-- JSON, ?2 how many due messages of each to look at.
with clock (now) as materialized (select cast(round(unixepoch('now', 'subsec') * 1000) as integer))
update {keys} as k
set turns = '[]'
where k.turns <> '[]'
    and k.rowid in (
        select f.rowid
        from json_each(?1) as lane,
            json_each((
                select json_group_array(head.id)
                from (
                    select o.id
                    from {table} as o
                    where o.topic = lane.value
                        and o.state in ('pending', 'processing')
                        and o.available_at <= (select now from clock)
                    order by o.available_at, o.id
                    limit ?2
                ) as head
            )) as due
        cross join {table} as o
        cross join {keys} as f
        where o.id = due.value
            and f.topic = o.topic
            and f.key = o.key
    )

-- Forgets keys that hold no message, of a topic where keys are no unit of delivery any more: ?1 topic, ?2 at most how many.
delete from {keys} as k
where k.rowid in (
    select f.rowid
    from {keys} as f
    where f.topic = ?1
        and not exists (
            select 1
            from {table} as o
            where o.topic = f.topic
                and o.key = f.key
                and o.state = 'held'
        )
    limit ?2
)

-- Forgets keys that hold no message, of a topic that is not ordered any more: ?1 topic.
delete from {keys} as k
where k.topic = ?1
    and not exists (
        select 1
        from {table} as o
        where o.topic = k.topic
            and o.key = k.key
            and o.state in ('pending', 'held')
            and o.state = 'held'
    )

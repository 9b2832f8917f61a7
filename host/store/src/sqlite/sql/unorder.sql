-- Lets go of messages that wait for their key, in a topic that is not ordered any more: ?1 topic, ?2 at most how many messages.
update {table} as m
set state = 'pending'
where m.rowid in (
    select o.rowid
    from {keys} as k
    cross join {table} as o
    where k.topic = ?1
        and o.topic = k.topic
        and o.key = k.key
        and o.state in ('pending', 'held')
        and o.state = 'held'
    limit ?2
)

-- Lets go of messages that wait for their key, in a topic where keys are no unit of delivery any more: ?1 topic, ?2 at most how
-- many messages. What is let go leaves the index that is read here.
update {table} as m
set state = 'pending'
where m.rowid in (
    select o.rowid
    from {table} as o
    where o.topic = ?1
        and o.state = 'held'
    limit ?2
)

-- Makes the message at the head of key ?2 of topic ?1 due, if it waits.
update {table} as m
set available_at = cast(round(unixepoch('now', 'subsec') * 1000) as integer)
where m.id = (select k.head from {keys} as k where k.topic = ?1 and k.key = ?2)
    and m.state = 'pending'
    and m.available_at > cast(round(unixepoch('now', 'subsec') * 1000) as integer)

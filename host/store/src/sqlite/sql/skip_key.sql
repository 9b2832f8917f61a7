-- Lets the next message of key ?2 of topic ?1 go on, where the one at its head is dead or was deleted.
update {keys} as k
set head = null,
    free_at = max(k.free_at, cast(round(unixepoch('now', 'subsec') * 1000) as integer))
where k.topic = ?1
    and k.key = ?2
    and k.head is not null
    and not exists (select 1 from {table} as m where m.id = k.head and m.state in ('pending', 'processing', 'held'))

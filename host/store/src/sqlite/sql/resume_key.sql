-- Ends the rest of key ?2 of topic ?1.
update {keys} as k
set free_at = cast(round(unixepoch('now', 'subsec') * 1000) as integer)
where k.topic = ?1
    and k.key = ?2
    and k.free_at > cast(round(unixepoch('now', 'subsec') * 1000) as integer)

-- Key ?2 of topic ?1.
select
    head,
    turns,
    failures,
    free_at > cast(round(unixepoch('now', 'subsec') * 1000) as integer) as rests
from {keys}
where topic = ?1
    and key = ?2

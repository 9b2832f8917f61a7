-- Key ?2 of topic ?1. Of the turns those whose message lives: others were held or ended while the topic was ordered, or were
-- deleted, and nobody told the key.
select
    k.head,
    k.turns as turns_before,
    (
        select json_group_array(t.value)
        from json_each(k.turns) as t
        where exists (select 1 from {table} as m where m.id = t.value and m.state in ('pending', 'processing'))
    ) as turns,
    k.failures,
    k.free_at > cast(round(unixepoch('now', 'subsec') * 1000) as integer) as rests
from {keys} as k
where k.topic = ?1
    and k.key = ?2

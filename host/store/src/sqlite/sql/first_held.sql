-- The first messages in publish order that are held for key ?2 of topic ?1: at most ?3.
select o.id, o.rowid as place
from {table} as o
where o.topic = ?1
    and o.key = ?2
    and o.state = 'held'
order by o.rowid
limit ?3

-- The first message in publish order that waits, of key ?2 of topic ?1.
select o.id
from {table} as o
where o.topic = ?1
    and o.key = ?2
    and o.state in ('pending', 'held')
order by o.rowid
limit 1

-- The id of the message that holds a dedup key: ?1 topic, ?2 dedup key. An adopted table may know dedup keys without topics.
select id
from {table}
where dedup_key = ?2
order by topic = ?1 desc
limit 1

-- Lets the next messages go on of keys at whose head these are: ?1 ids as JSON, each with the milliseconds that its key rests.
with ended as materialized (
    select k.rowid as place, e.value ->> 'rest_ms' as rest_ms
    from json_each(?1) as e
    cross join {table} as m
    cross join {keys} as k
    where m.id = e.value ->> 'id'
        and k.topic = m.topic
        and k.key = m.key
        and k.head = m.id
)
update {keys} as k
set head = null,
    free_at = cast(round(unixepoch('now', 'subsec') * 1000) as integer) + ended.rest_ms
from ended
where k.rowid = ended.place

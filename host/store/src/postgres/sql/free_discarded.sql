-- Lets the next messages go on of keys at whose head these discarded ones are: $1 ids. Only a statement that begins once they
-- are dead sees a turn that they were given while discard.sql waited for them.
update {keys} as k
set head = null,
    free_at = now()
from {table} as m
where m.id = any ($1::uuid[])
    and m.state = 'dead'
    and m.reason = 'discarded'
    and k.topic = any (array(select d.topic from {table} as d where d.id = any ($1::uuid[]) and d.key is not null))
    and k.key = any (array(select d.key from {table} as d where d.id = any ($1::uuid[]) and d.key is not null))
    and k.topic = m.topic
    and k.key = m.key
    and k.head = m.id

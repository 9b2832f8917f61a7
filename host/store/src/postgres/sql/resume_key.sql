-- Ends the rest of key $2 of topic $1, makes the message at its head due, if it waits, and wakes the relays that sleep. Returns a
-- row if it did. The message is locked first, as by whoever ends one.
with due as (
    update {table} as m
    set available_at = now()
    where m.id = (select k.head from {keys} as k where k.topic = $1 and k.key = $2)
        and m.state = 'pending'
        and m.available_at > now()
    returning m.id
),
rested as (
    update {keys} as k
    set free_at = now()
    where k.topic = $1
        and k.key = $2
        and k.free_at > now()
        and (select count(*) from due) >= 0
    returning k.key
)
select pg_notify({channel_literal}, '')
from (
    select key from rested
    union all
    select id::text from due
) as resumed

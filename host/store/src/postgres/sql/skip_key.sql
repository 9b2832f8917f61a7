-- Lets the next message of key $2 of topic $1 go on, where the one at its head is dead or was deleted, and wakes the relays that
-- sleep. Returns a row if it did.
with skipped as (
    update {keys} as k
    set head = null,
        free_at = greatest(k.free_at, now())
    where k.topic = $1
        and k.key = $2
        and k.head is not null
        and not exists (select from {table} as m where m.id = k.head and m.state in ('pending', 'processing', 'held'))
    returning k.key
)
select pg_notify({channel_literal}, '') from skipped

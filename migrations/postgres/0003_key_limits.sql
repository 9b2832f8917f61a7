-- Limits by key, and keys that rest.

-- Relays lock these two in either order: whoever would wait for long lets go and tries again.
do $outboxd_body$
declare
    before text := current_setting('lock_timeout');
begin
    for try in 1..20 loop
        begin
            perform set_config('lock_timeout', '2s', true);
            lock table {table} in share mode;
            perform set_config('lock_timeout', '200ms', true);
            lock table {keys} in access exclusive mode;
            perform set_config('lock_timeout', before, true);
            return;
        exception when lock_not_available or deadlock_detected then
            perform pg_sleep(0.05);
        end;
    end loop;
    raise exception 'the tables stayed locked by others; try again when no long transaction writes to them' using errcode = 'lock_not_available';
end
$outboxd_body$;

alter table {keys}
    -- Where so many messages of a key may be under way at once: those whose turn it is. Its head is then one of them, or one
    -- that waits for a retry; null: somebody has to look whether another may have its turn.
    add column if not exists turns uuid[] not null default '{}',
    -- How many calls its target has failed in a row.
    add column if not exists failures integer not null default 0,
    -- Why it rests, or rested last.
    add column if not exists cause text,
    -- An index of free keys that spoke of the head would be written with each new head. So it speaks of this, and an update that
    -- puts the next message of a key at its head stays in its page (HOT).
    add column if not exists is_free boolean not null generated always as (head is null) stored;

do $outboxd_body$
declare
    old regclass;
begin
    for old in
        select i.indexrelid
        from pg_index as i
        where i.indrelid = {keys_literal}::regclass
            and pg_get_expr(i.indpred, i.indrelid) = '(head IS NULL)'
    loop
        execute format('drop index %s', old);
    end loop;
end
$outboxd_body$;

create index if not exists {free_index} on {keys} (topic, free_at, key) where is_free;

-- Asked for each message that is claimed.
create index if not exists {failing_index} on {keys} (topic, key) where failures > 0;

-- What waits for its key. Only held messages cost anything here.
create index if not exists {held_index} on {table} (topic, key, seq, id) where state = 'held';

-- The outbox. Also adopts a table that another outbox library made by the same convention: what is missing is added,
-- what is there is left as it is.

-- UUID version 7 (PostgreSQL 15 has none): milliseconds, then the rest of the microseconds, then random bits.
create or replace function {new_id}() returns uuid
language sql volatile parallel safe
as $outboxd_body$
    select (lpad(to_hex(us / 1000), 12, '0') || '7' || lpad(to_hex((us % 1000) * 4096 / 1000), 3, '0') || substr(random, 17))::uuid
    from (
        select
            (extract(epoch from clock_timestamp()) * 1000000)::bigint as us,
            replace(gen_random_uuid()::text, '-', '') as random
    ) as parts
$outboxd_body$;

create table if not exists {table} (
    id uuid primary key default {new_id}(),
    topic text not null,
    payload json not null
);

alter table {table}
    add column if not exists key text,
    add column if not exists headers jsonb not null default '{}',
    add column if not exists dedup_key text,
    add column if not exists state text not null default 'pending',
    add column if not exists attempts integer not null default 0,
    -- When a pending message is due, and when the lease of a processing one ends: one index serves both.
    add column if not exists available_at timestamptz not null default now(),
    add column if not exists lease_id uuid,
    -- Leases that were lost without a settle.
    add column if not exists lapses integer not null default 0,
    add column if not exists last_error text,
    add column if not exists reason text,
    add column if not exists expires_at timestamptz,
    add column if not exists created_at timestamptz not null default now(),
    add column if not exists delivered_at timestamptz,
    add column if not exists dead_at timestamptz,
    -- The last 20 attempts.
    add column if not exists history jsonb not null default '[]';

do $outboxd_body$
declare
    id_type regtype := (
        select atttypid from pg_attribute where attrelid = {table_literal}::regclass and attname = 'id' and not attisdropped
    );
    payload_type regtype := (
        select atttypid from pg_attribute where attrelid = {table_literal}::regclass and attname = 'payload' and not attisdropped
    );
begin
    if id_type <> 'uuid'::regtype then
        raise exception 'the table cannot be adopted: the id is of type %, not uuid', id_type;
    end if;
    if payload_type not in ('json'::regtype, 'jsonb'::regtype, 'text'::regtype, 'varchar'::regtype, 'bytea'::regtype) then
        raise exception 'the table cannot be adopted: the payload is of type %, not json, jsonb, text or bytea', payload_type;
    end if;
end
$outboxd_body$;

-- An adopted dead letter died at an unknown time: its age counts from now.
update {table} set dead_at = now() where state = 'dead' and dead_at is null;

-- A wrong row fails at its producer. Not validated against the rows of an adopted table.
do $outboxd_body$
begin
    if not exists (select from pg_constraint where conrelid = {table_literal}::regclass and conname = 'outboxd_row') then
        alter table {table} add constraint outboxd_row check (
            topic <> ''
            and state in ('pending', 'processing', 'held', 'delivered', 'dead')
            and attempts >= 0
            and lapses >= 0
            and jsonb_typeof(headers) = 'object'
            and jsonb_typeof(history) = 'array'
        ) not valid;
    end if;
end
$outboxd_body$;

-- Most updates touch no index: room in the page keeps them there. Vacuum early: a queue's dead rows stand in the claim's way.
alter table {table} set (
    fillfactor = 80,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 1,
    autovacuum_analyze_scale_factor = 0.05
);

-- The claim, the due topics and the wait of the oldest message all read this one, in order.
create index if not exists {due_index} on {table} (topic, available_at, id) where state in ('pending', 'processing');

-- One message a topic and dedup key, for as long as the row lives. The dedup key leads, to be found by it alone.
create unique index if not exists {dedup_index} on {table} (dedup_key, topic) where dedup_key is not null;

create index if not exists {delivered_index} on {table} (delivered_at) where state = 'delivered';

create index if not exists {dead_index} on {table} (dead_at) where state = 'dead';

-- What people asked for: a row whose key is empty is about the whole topic.
create table if not exists {control} (
    topic text not null,
    key text not null default '',
    paused_at timestamptz,
    primary key (topic, key)
);

-- Relays that sleep, and until when they may be believed. Unlogged: after a crash nobody sleeps.
create unlogged table if not exists {sleepers} (
    relay uuid primary key,
    until timestamptz not null
);

-- Until when somebody sleeps, in milliseconds since the epoch. A sequence, because a producer reads it without a query.
create unlogged sequence if not exists {asleep};

-- Producers may have no other right than to insert messages.
grant select on sequence {asleep} to public;

-- Wakes the relays that sleep. NOTIFY takes a lock of the whole database at commit, so that producers queue up behind each
-- other: only a relay that said it sleeps is notified, once a transaction, and only if it still sleeps at commit. A prepared
-- transaction must not notify; the relay's poll finds its messages.
create or replace function {wake}() returns trigger
language plpgsql
as $outboxd_body$
declare
    said text;
begin
    if pg_sequence_last_value({asleep_literal}::regclass) > extract(epoch from clock_timestamp()) * 1000
        and current_setting('outboxd.woken', true) is distinct from {channel_literal}
    then
        said := set_config('outboxd.woken', {channel_literal}, true);
        -- There is no query at the commit of a single statement in the extended protocol.
        if coalesce(current_query(), '') !~* 'prepare\s+transaction' then
            perform pg_notify({channel_literal}, '');
        end if;
    end if;
    return null;
end
$outboxd_body$;

-- The condition is looked at when the message is inserted: while relays are busy no event is queued and no function runs at
-- commit, which alone cost producers a fifth. A relay that falls asleep between the insert and the commit looks again by
-- itself, and its poll bounds the rest.
drop trigger if exists outboxd_wake on {table};

create constraint trigger outboxd_wake
after insert on {table}
deferrable initially deferred
for each row
when (
    new.available_at <= statement_timestamp()
    and pg_sequence_last_value({asleep_literal}::regclass) > date_part('epoch', clock_timestamp()) * 1000
)
execute function {wake}();

-- Publishes a message in the transaction of the caller's own writes, and answers its id. A second publish with the same
-- topic and dedup key inserts nothing and answers the first one's id.
--
-- A publish that is a transaction of its own is refused: the message would not share the fate of what it tells about.
-- Where nothing was written before it, it leaves its statement's start in a setting, and the trigger below looks at commit
-- whether a later statement came.
create or replace function {publish}(
    topic text,
    payload json,
    key text default null,
    headers jsonb default '{}',
    dedup_key text default null,
    delay interval default null,
    expires interval default null
) returns uuid
language plpgsql volatile
as $outboxd_body$
#variable_conflict use_column
declare
    new_topic alias for $1;
    new_payload alias for $2;
    new_key alias for $3;
    new_headers alias for $4;
    new_dedup_key alias for $5;
    new_delay alias for $6;
    new_expires alias for $7;
    bytes_max bigint := coalesce(nullif(current_setting('outboxd.payload_max', true), ''), '1048576')::bigint;
    message_id uuid;
begin
    if octet_length(new_payload::text) > bytes_max then
        raise exception 'the payload has % bytes, more than the % that are allowed', octet_length(new_payload::text), bytes_max
            using errcode = 'program_limit_exceeded', hint = 'store the data elsewhere and publish a reference to it';
    end if;
    if pg_current_xact_id_if_assigned() is null and pg_trigger_depth() = 0 then
        perform set_config('outboxd.published_first_at', statement_timestamp()::text, true);
    end if;
    -- The row that holds the dedup key may vanish between the two statements: then try again.
    for try in 1..10 loop
        insert into {table} (topic, payload, key, headers, dedup_key, available_at, expires_at)
        values (
            new_topic, new_payload, new_key, coalesce(new_headers, '{}'), new_dedup_key,
            now() + coalesce(new_delay, interval '0'), now() + new_expires
        )
        on conflict do nothing
        returning id into message_id;
        if message_id is null then
            select id into message_id
            from {table} as other
            where other.dedup_key = new_dedup_key
            order by other.topic = new_topic desc
            limit 1;
        end if;
        exit when message_id is not null;
    end loop;
    if message_id is null then
        raise exception 'dedup key % is taken and freed too fast', quote_literal(new_dedup_key) using errcode = 'serialization_failure';
    end if;
    return message_id;
end
$outboxd_body$;

create or replace function {alone}() returns trigger
language plpgsql
as $outboxd_body$
begin
    if current_setting('outboxd.published_first_at', true) = statement_timestamp()::text then
        raise exception 'a message was published outside the transaction that it tells about'
            using errcode = 'no_active_sql_transaction',
                hint = 'begin a transaction, write your rows, publish, commit; within one statement or one batch, publish after the write';
    end if;
    return null;
end
$outboxd_body$;

drop trigger if exists outboxd_alone on {table};

create constraint trigger outboxd_alone
after insert on {table}
deferrable initially deferred
for each row
when (current_setting('outboxd.published_first_at', true) <> '')
execute function {alone}();

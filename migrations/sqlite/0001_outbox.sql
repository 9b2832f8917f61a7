-- The outbox. Ids and lease ids are text, times are integer milliseconds since the epoch.
create table if not exists {table} (
    -- UUID version 7: milliseconds, then random bits.
    id text primary key not null default (
        substr(printf('%012x', cast(round((julianday('now') - 2440587.5) * 86400000) as integer)), 1, 8)
        || '-' || substr(printf('%012x', cast(round((julianday('now') - 2440587.5) * 86400000) as integer)), 9, 4)
        || '-7' || substr(lower(hex(randomblob(2))), 2)
        || '-' || substr('89ab', 1 + (random() & 3), 1) || substr(lower(hex(randomblob(2))), 2)
        || '-' || lower(hex(randomblob(6)))
    ) check (typeof(id) = 'text' and length(id) = 36),
    topic text not null check (typeof(topic) = 'text' and topic <> '' and instr(topic, char(0)) = 0),
    key text check (key is null or (typeof(key) = 'text' and instr(key, char(0)) = 0)),
    -- JSON, as the producer wrote it.
    payload text not null check (json_valid(payload)),
    headers text not null default '{}' check (json_valid(headers) and json_type(headers) = 'object'),
    dedup_key text check (dedup_key is null or (typeof(dedup_key) = 'text' and instr(dedup_key, char(0)) = 0)),
    state text not null default 'pending' check (state in ('pending', 'processing', 'held', 'delivered', 'dead')),
    attempts integer not null default 0 check (typeof(attempts) = 'integer' and attempts >= 0),
    -- When a pending message is due, and when the lease of a processing one ends: one index serves both.
    available_at integer not null default (cast(round((julianday('now') - 2440587.5) * 86400000) as integer))
        check (typeof(available_at) = 'integer'),
    lease_id text,
    -- Leases that were lost without a settle.
    lapses integer not null default 0 check (typeof(lapses) = 'integer' and lapses >= 0),
    last_error text,
    reason text,
    expires_at integer check (expires_at is null or typeof(expires_at) = 'integer'),
    created_at integer not null default (cast(round((julianday('now') - 2440587.5) * 86400000) as integer))
        check (typeof(created_at) = 'integer'),
    delivered_at integer,
    dead_at integer,
    -- The last 20 attempts.
    history text not null default '[]' check (json_valid(history) and json_type(history) = 'array')
);

-- The claim, the due topics and the wait of the oldest message all read this one, in order.
create index if not exists {due_index} on {table_unqualified} (topic, available_at, id) where state in ('pending', 'processing');

-- One message a topic and dedup key, for as long as the row lives.
create unique index if not exists {dedup_index} on {table_unqualified} (dedup_key, topic) where dedup_key is not null;

create index if not exists {delivered_index} on {table_unqualified} (delivered_at) where state = 'delivered';

create index if not exists {dead_index} on {table_unqualified} (dead_at) where state = 'dead';

-- What people asked for: a row whose key is empty is about the whole topic.
create table if not exists {control} (
    topic text not null,
    key text not null default '',
    paused_at integer,
    primary key (topic, key)
) without rowid;

-- Limits by key, and keys that rest.

alter table {keys}
    -- Where so many messages of a key may be under way at once: those whose turn it is. Its head is then one of them, or one
    -- that waits for a retry; null: somebody has to look whether another may have its turn.
    add column if not exists turns uuid[] not null default '{}',
    -- How many calls its target has failed in a row.
    add column if not exists failures integer not null default 0,
    -- Why it rests, or rested last.
    add column if not exists cause text;

-- What waits for its key. Only held messages cost anything here.
create index if not exists {held_index} on {table} (topic, key, seq, id) where state = 'held';

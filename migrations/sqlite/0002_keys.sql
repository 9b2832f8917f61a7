-- Order by key: whose turn it is. A message's place in the order of publishing is its rowid.

-- The first of the messages of a key that wait; SQLite ends each entry with the rowid. Only messages that have a key cost
-- anything here.
create index if not exists {waiting_index} on {table_unqualified} (topic, key) where key is not null and state in ('pending', 'held');

-- The keys of ordered topics that have messages. A row is deleted when its key has none left.
create table if not exists {keys} (
    topic text not null,
    key text not null,
    -- The only message of the key that may be claimed: it waits for its attempt or a retry, is being processed, or is dead and
    -- blocks the key. Null: the next one is to be chosen.
    head text,
    -- Since when it is null.
    free_at integer not null,
    primary key (topic, key)
);

create index if not exists {free_index} on {keys_unqualified} (topic, free_at, key) where head is null;

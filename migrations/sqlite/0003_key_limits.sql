-- Limits by key, and keys that rest.

-- Where so many messages of a key may be under way at once: those whose turn it is, as a JSON array of ids. Its head is then one
-- of them, or one that waits for a retry; null: somebody has to look whether another may have its turn.
alter table {keys} add column turns text not null default '[]';

-- How many calls its target has failed in a row.
alter table {keys} add column failures integer not null default 0;

-- Why it rests, or rested last.
alter table {keys} add column cause text;

-- What waits for its key. Only held messages cost anything here.
create index if not exists {held_index} on {table_unqualified} (topic, key) where state = 'held';

-- Which migrations have run, and which binaries the schema still works with.
create table if not exists {versions} (
    version integer primary key,
    -- The oldest schema version whose binaries work on this one.
    works_with integer not null,
    applied_at timestamptz not null default now()
)

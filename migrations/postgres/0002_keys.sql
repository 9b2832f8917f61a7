-- Order by key: the place of each message in the order of publishing, and whose turn it is.

-- The order in which the database inserted, whatever clocks say. Messages that were there before come first, by id.
create sequence if not exists {seq};

-- Producers may have no other right than to insert messages.
grant usage on sequence {seq} to public;

-- In two steps: no row is rewritten.
alter table {table} add column if not exists seq bigint not null default 0;

alter table {table} alter column seq set default nextval({seq_literal}::regclass);

-- The first of the messages of a key that wait. Only messages that have a key cost anything here.
create index if not exists {waiting_index} on {table} (topic, key, seq, id) where key is not null and state in ('pending', 'held');

-- The keys of ordered topics that have messages. A row is deleted when its key has none left.
create table if not exists {keys} (
    topic text not null,
    key text not null,
    -- The only message of the key that may be claimed: it waits for its attempt or a retry, is being processed, or is dead and
    -- blocks the key. Null: the next one is to be chosen.
    head uuid,
    -- Since when it is null.
    free_at timestamptz not null default now(),
    -- Rises when messages are held, so that nobody who looked before takes the key for one without messages.
    holds bigint not null default 0,
    primary key (topic, key)
) with (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 1,
    autovacuum_analyze_scale_factor = 0.05
);

-- Who may write the control table is a relay, or a person's hand: they need the keys too.
do $outboxd_body$
declare
    allowed record;
begin
    for allowed in
        select
            acl.privilege_type as privilege,
            case acl.grantee when 0 then 'public' else quote_ident(acl.grantee::regrole::text) end as grantee
        from pg_class as c
        cross join aclexplode(c.relacl) as acl
        where c.oid = {control_literal}::regclass
            and acl.grantee <> c.relowner
            and acl.privilege_type in ('SELECT', 'INSERT', 'UPDATE', 'DELETE')
    loop
        execute format('grant %s on %s to %s', allowed.privilege, {keys_literal}::regclass, allowed.grantee);
    end loop;
end
$outboxd_body$;

create index if not exists {free_index} on {keys} (topic, free_at, key) where head is null;

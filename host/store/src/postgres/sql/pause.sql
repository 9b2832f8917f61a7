-- Stops the claiming of topic $1; changes nothing where it is stopped.
insert into {control} as c (topic, key, paused_at)
values ($1, '', now())
on conflict (topic, key) do update set paused_at = excluded.paused_at
where c.paused_at is null

-- Says that relay $1 sleeps, to be believed for $2 milliseconds: from now on a publish notifies.
insert into {sleepers} as s (relay, until)
values ($1, now() + $2 * interval '1 millisecond')
on conflict (relay) do update set until = excluded.until

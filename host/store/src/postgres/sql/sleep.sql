-- Says that relay $1 sleeps, to be believed for $2 milliseconds: from now on a publish notifies.
with said as (
    insert into {sleepers} as s (relay, until)
    values ($1, now() + $2 * interval '1 millisecond')
    on conflict (relay) do update set until = excluded.until
    returning s.until
)
select setval({asleep_literal}::regclass, (extract(epoch from max(sleeping.until)) * 1000)::bigint)
from (
    select until from said
    union all
    select until from {sleepers}
) as sleeping

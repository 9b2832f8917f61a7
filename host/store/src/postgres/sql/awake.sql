-- Says that relay $1 is awake: it claims until nothing is due, and need not be told. Where its sleep was the last to end, the
-- others' count from now on; where another has said meanwhile that it sleeps, that stands.
with woken as (
    delete from {sleepers}
    where relay = $1
    returning until
)
select setval(
    {asleep_literal}::regclass,
    coalesce((select (extract(epoch from max(s.until)) * 1000)::bigint from {sleepers} as s where s.relay <> $1), 1)
)
from woken
where pg_sequence_last_value({asleep_literal}::regclass) <= (extract(epoch from woken.until) * 1000)::bigint

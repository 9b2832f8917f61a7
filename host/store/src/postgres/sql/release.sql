-- Gives messages back whose lease is still held, the attempt unspent, lapses as they were, and returns them: $1 ids,
-- $2 lease ids, $3 milliseconds until due again, $4 reasons, $5 errors, $6 entries of the history.
update {table} as m
set state = 'pending',
    attempts = greatest(m.attempts - 1, 0),
    available_at = now() + s.after_ms * interval '1 millisecond',
    lease_id = null,
    reason = s.reason,
    last_error = s.error,
    history = case when jsonb_array_length(m.history) < 20 then m.history else m.history - 0 end
        || jsonb_build_array(s.entry::jsonb || jsonb_build_object('at_ms', (extract(epoch from now()) * 1000)::bigint))
from unnest($1::uuid[], $2::uuid[], $3::bigint[], $4::text[], $5::text[], $6::text[])
    as s (id, lease_id, after_ms, reason, error, entry)
where m.id = any ($1::uuid[])
    and m.id = s.id
    and m.lease_id = s.lease_id
    and m.state = 'processing'
returning s.id, s.lease_id

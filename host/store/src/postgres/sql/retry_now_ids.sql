-- Makes pending messages due now: $1 ids, $2 at most how many. One that has been due for a while keeps its place.
update {table} as m
set available_at = least(m.available_at, now())
where m.id = any (array(
    select p.id
    from {table} as p
    where p.id = any ($1::uuid[])
        and p.state = 'pending'
    order by p.id
    limit $2
    for update
))
    and m.state = 'pending'

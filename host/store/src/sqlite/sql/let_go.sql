-- Makes held messages pending: ?1 ids as JSON.
update {table} as m
set state = 'pending'
where m.id in (select value from json_each(?1))
    and m.state = 'held'

-- Says that relay $1 is awake: it claims until nothing is due, and need not be told.
delete from {sleepers}
where relay = $1

-- Ends the pause of topic $1.
delete from {control} as c
where c.topic = $1
    and c.key = ''
    and c.paused_at is not null

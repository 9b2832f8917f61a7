-- Deletes key ?2 of topic ?1.
delete from {keys}
where topic = ?1
    and key = ?2

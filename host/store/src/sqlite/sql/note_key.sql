-- Writes whose turn it is of key ?2 of topic ?1: ?3 the head, ?4 turns as JSON.
update {keys}
set head = ?3,
    turns = ?4
where topic = ?1
    and key = ?2

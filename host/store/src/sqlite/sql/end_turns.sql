-- Ends all turns of keys: ?1 their rowids as JSON. In an ordered topic the head alone has its turn.
update {keys}
set turns = '[]'
where rowid in (select value from json_each(?1))

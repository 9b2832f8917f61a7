-- The indexes of table ?1.
select name
from pragma_index_list(?1)

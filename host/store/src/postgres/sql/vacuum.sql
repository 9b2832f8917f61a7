-- Frees what is dead for new rows. Waits for nobody who vacuums already, takes no other process to help, and leaves the empty
-- end of the file to autovacuum: to cut that off takes a lock that claims would wait for.
vacuum (skip_locked, parallel 0, truncate false) {table}, {keys}

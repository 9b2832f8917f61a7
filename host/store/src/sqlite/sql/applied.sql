-- The newest version that was applied, and the oldest whose binaries work on it.
select version as version, works_with as works_with
from {versions}
order by version desc
limit 1

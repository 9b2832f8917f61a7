-- How many pages a vacuum of the messages and their keys would visit at most, and whether this role may vacuum them: a member of
-- their owner may, one of the database's owner, and from PostgreSQL 17 on who was granted just that.
select
    (sum(pg_relation_size(c.oid)) / current_setting('block_size')::bigint)::bigint as pages,
    bool_and(
        pg_has_role(c.relowner, 'usage')
        or pg_has_role(d.datdba, 'usage')
        or case when current_setting('server_version_num')::integer >= 170000 then has_table_privilege(c.oid, 'maintain') else false end
    ) as allowed
from pg_class as c
join pg_database as d on d.datname = current_database()
where c.oid in (to_regclass({table_literal}), to_regclass({keys_literal}))

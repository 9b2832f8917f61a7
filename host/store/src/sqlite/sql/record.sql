-- Notes that migration ?1 has run; binaries of schema ?2 still work.
insert into {versions} (version, works_with)
values (?1, ?2)
on conflict (version) do nothing

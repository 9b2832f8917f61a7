-- What the library is, how the file is kept, and the time.
select
    sqlite_version() as version,
    (select journal_mode from pragma_journal_mode) as journal,
    cast(round((julianday('now') - 2440587.5) * 86400000) as integer) as now_ms

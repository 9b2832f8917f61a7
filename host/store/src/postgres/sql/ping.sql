-- Answers when the database does.
select 1

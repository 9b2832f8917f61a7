module outboxd

go 1.25

module outboxd-elasticsearch

go 1.25

require outboxd v0.0.0

replace outboxd => ../templates/go/sdk

package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"log"
	"os"

	"github.com/lib/pq"
)

@PAGE@

func main() {
	db, err := sql.Open("postgres", os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	if err := placeOrder(context.Background(), db, 7); err != nil {
		log.Fatal(err)
	}
	var refused *pq.Error
	if err := placeOrder(context.Background(), db, 7); !errors.As(err, &refused) || refused.Code != "23505" {
		log.Fatal("the second order was taken: ", err)
	}
}

// Reads its message as JSON and succeeds.
package main

import "outboxd"

type Order struct {
	Do string `json:"do"`
}

func init() { outboxd.Handle(deliver) }

func deliver(order Order, _ outboxd.Message) error {
	if order.Do != "succeed" {
		return outboxd.Cancel("no such message was sent")
	}
	return nil
}

func main() {}

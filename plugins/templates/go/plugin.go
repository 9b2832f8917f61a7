package main

import "outboxd"

type Order struct {
	ID    uint64  `json:"id"`
	Total float64 `json:"total"`
}

func init() { outboxd.Handle(deliver) }

func deliver(order Order, _ outboxd.Message) error {
	if order.Total < 0 {
		return outboxd.Cancel("an order cannot cost less than nothing")
	}
	answer, err := outboxd.Post(outboxd.Setting("url"), order)
	switch {
	case err != nil:
		return err
	case answer.Status < 300:
		return nil
	case answer.Status == 429 || answer.Status >= 500:
		// "Not now": the target says when, or the topic's backoff does.
		return outboxd.Retry(answer.RetryAfter(), "HTTP %d", answer.Status)
	}
	return outboxd.Cancel("HTTP %d: %s", answer.Status, answer.Body)
}

func main() {}

// Package main is an outboxd plugin: it indexes each message's payload as a document of Elasticsearch or OpenSearch.
package main

import (
	"bytes"
	"encoding/json"
	"net/url"
	"strings"

	"outboxd"
)

func init() { outboxd.Handle(deliver) }

func deliver(document json.RawMessage, message outboxd.Message) error {
	if !bytes.HasPrefix(bytes.TrimSpace(document), []byte("{")) {
		return outboxd.Cancel("the payload is no JSON object, so it is no document")
	}
	server := strings.TrimSuffix(outboxd.Setting("url"), "/")
	if server == "" {
		return outboxd.Retry(0, "the manifest has no \"url\" in [settings]")
	}
	index := outboxd.Setting("index")
	if index == "" {
		// Names of indices have no capitals.
		index = strings.ToLower(message.Topic)
	}
	// Created under the message's id: one that comes again finds itself there.
	target := server + "/" + url.PathEscape(index) + "/_create/" + url.PathEscape(message.Id)
	headers := []outboxd.Header{{Name: "content-type", Value: "application/json"}}
	if authorization := outboxd.Setting("authorization"); authorization != "" {
		headers = append(headers, outboxd.Header{Name: "authorization", Value: authorization})
	}
	answer, err := outboxd.Send("PUT", target, message.Payload, headers...)
	switch {
	case err != nil:
		return err
	case answer.Status < 300 || answer.Status == 409:
		return nil
	case answer.Status == 400 && isOfTheDocument(answer.Body) || answer.Status == 413:
		return outboxd.Cancel("Elasticsearch answered %d: %s", answer.Status, answer.Body)
	}
	// An index can be made, a key corrected, a cluster healed.
	return outboxd.Retry(answer.RetryAfter(), "Elasticsearch answered %d: %s", answer.Status, answer.Body)
}

// isOfTheDocument says whether a refusal is of the document itself, which no later try would change.
func isOfTheDocument(body []byte) bool {
	var refusal struct {
		Error struct{ Type string }
	}
	if json.Unmarshal(body, &refusal) != nil {
		return false
	}
	switch refusal.Error.Type {
	// Its name before Elasticsearch 8, and since.
	case "mapper_parsing_exception", "document_parsing_exception", "strict_dynamic_mapping_exception":
		return true
	}
	return false
}

func main() {}

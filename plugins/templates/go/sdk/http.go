package outboxd

import (
	"encoding/json"
	"strconv"
	"time"

	context "outboxd/gen/outboxd_plugin_context"
	http "outboxd/gen/outboxd_plugin_http"
	wit "outboxd/wit/types"
)

// Header is a name and a value. {{secret:NAME}} in the value is filled in by the host, where the manifest grants it.
type Header struct{ Name, Value string }

// Answer is what came back, whatever its status. Redirects are not followed.
type Answer struct {
	Status  int
	Headers []Header // names in lower case
	Body    []byte
}

// Post sends value as JSON, with the message's id as idempotency key. Its error means that no answer came; returned from the
// handler it tries the message again.
func Post(url string, value any, headers ...Header) (Answer, error) {
	body, err := json.Marshal(value)
	if err != nil {
		return Answer{}, Cancel("the body is no JSON: %v", err)
	}
	return Send("POST", url, body, append(headers, Header{"content-type", "application/json"})...)
}

// Send sends any bytes by any method to an absolute URL, with the message's id as idempotency key.
func Send(method, url string, body []byte, headers ...Header) (Answer, error) {
	headers = append(headers, Header{"idempotency-key", context.IdempotencyKey()})
	if parent := context.Traceparent(); parent.IsSome() {
		headers = append(headers, Header{"traceparent", parent.Some()})
	}
	request := http.Request{Method: method, Url: url, Body: body, TimeoutMs: wit.None[uint64]()}
	for _, header := range headers {
		request.Headers = append(request.Headers, wit.Tuple2[string, string]{F0: header.Name, F1: header.Value})
	}
	result := http.Send(request)
	if result.IsErr() {
		return Answer{}, Retry(0, "%s", noAnswer(result.Err()))
	}
	came := result.Ok()
	answer := Answer{Status: int(came.Status), Body: came.Body}
	for _, header := range came.Headers {
		answer.Headers = append(answer.Headers, Header{header.F0, header.F1})
	}
	return answer, nil
}

// Header is the first of this name, in lower case, or nothing.
func (a Answer) Header(name string) string {
	for _, header := range a.Headers {
		if header.Name == name {
			return header.Value
		}
	}
	return ""
}

// RetryAfter is the answer's retry-after where that is a number of seconds, at most a week of them; else zero.
func (a Answer) RetryAfter() time.Duration {
	seconds, err := strconv.ParseUint(a.Header("retry-after"), 10, 64)
	if err != nil || seconds > 7*24*60*60 {
		return 0
	}
	return time.Duration(seconds) * time.Second
}

func noAnswer(err http.HttpError) string {
	switch err.Tag() {
	case http.HttpError_Denied:
		return "denied: " + err.Denied()
	case http.HttpError_Dns:
		return "no answer: the host's name could not be resolved"
	case http.HttpError_Connect:
		return "no answer: connection refused or unreachable"
	case http.HttpError_Tls:
		return "no answer: the TLS handshake failed"
	case http.HttpError_Timeout:
		return "no answer in time"
	case http.HttpError_TooLarge:
		return "the answer was too large"
	}
	return "no usable answer: " + err.Protocol()
}

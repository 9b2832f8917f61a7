// Package outboxd is what a plugin of outboxd is written with: a function that takes a typed payload and answers what became
// of it. Returning nil is success; Cancel gives up, and every other error tries again. Yours to change.
package outboxd

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	_ "outboxd/gen"
	exported "outboxd/gen/export_outboxd_plugin_handler"
	messages "outboxd/gen/outboxd_plugin_messages"
	store "outboxd/gen/wasi_config_store"
	logging "outboxd/gen/wasi_logging_logging"
	wit "outboxd/wit/types"
)

// Message is what was published, and which attempt this is.
type Message = messages.Message

type result = wit.Result[wit.Unit, messages.Failure]

type cancelled struct{ reason string }

func (c cancelled) Error() string { return c.reason }

// Cancel is an error that is never tried again: the message is dead, with this text, until a person redrives it.
func Cancel(format string, a ...any) error {
	return cancelled{fmt.Sprintf(format, a...)}
}

type retried struct {
	reason string
	after  time.Duration
}

func (r retried) Error() string { return r.reason }

// Retry is an error that is tried again, after so long where that is not zero, else by the topic's backoff.
func Retry(after time.Duration, format string, a ...any) error {
	return retried{fmt.Sprintf(format, a...), after}
}

// Handle makes deliver the plugin's handler; call it in init. A payload of another shape never becomes right: it is cancelled.
func Handle[T any](deliver func(T, Message) error) {
	exported.Handle = func(message Message) result {
		var payload T
		if err := json.Unmarshal(message.Payload, &payload); err != nil {
			return failed(Cancel("the payload is not what this plugin reads: %v", err))
		}
		if err := deliver(payload, message); err != nil {
			return failed(err)
		}
		return wit.Ok[wit.Unit, messages.Failure](wit.Unit{})
	}
}

func failed(err error) result {
	var gaveUp cancelled
	if errors.As(err, &gaveUp) {
		failure := messages.MakeFailureCancel(safe(err.Error()))
		return wit.Err[wit.Unit](failure)
	}
	after := wit.None[uint64]()
	var later retried
	if errors.As(err, &later) && later.after > 0 {
		after = wit.Some(uint64(later.after.Milliseconds()))
	}
	retry := messages.Retry{Reason: safe(err.Error()), AfterMs: after}
	return wit.Err[wit.Unit](messages.MakeFailureRetry(retry))
}

// safe makes any text one that may leave the plugin: the contract's strings are UTF-8, and the host keeps 8 KiB of a reason.
func safe(text string) string {
	if len(text) > 8<<10 {
		text = text[:8<<10]
	}
	return strings.ToValidUTF8(text, "\uFFFD")
}

// Setting is a value of [settings] in the manifest, or nothing where there is none.
func Setting(name string) string {
	if value := store.Get(name); value.IsOk() {
		return value.Ok().SomeOr("")
	}
	return ""
}

// Log writes a line to the host's log.
func Log(format string, a ...any) {
	logging.Log(logging.Level_Info, "", safe(fmt.Sprintf(format, a...)))
}

// The contract in a form that is short to use. Yours to change. What these functions answer is freed when the handler returns.
#ifndef OUTBOXD_H
#define OUTBOXD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gen/plugin.h"

typedef exports_outboxd_plugin_handler_message_t outboxd_message;
typedef exports_outboxd_plugin_handler_failure_t outboxd_failure;

// Yours: delivers one message. Returns true where it is delivered, else what cancel, retry or post_json returned.
bool deliver(const outboxd_message *message, outboxd_failure *failure);

// Never try again: the message is dead, with this text as its error. Returns false.
bool cancel(outboxd_failure *failure, const char *format, ...) __attribute__((format(printf, 2, 3)));

// Try again, after so many milliseconds, or by the topic's backoff where after_ms is negative. Returns false.
bool retry(outboxd_failure *failure, int64_t after_ms, const char *format, ...) __attribute__((format(printf, 3, 4)));

// A value of [settings] in the manifest, or NULL.
const char *setting(const char *name);

typedef struct {
    int status;
    // The body, ended by a NUL.
    const char *text;
    // Where the answer has retry-after as a number of seconds, else -1.
    int64_t retry_after_ms;
    plugin_list_tuple2_string_string_t headers;
} outboxd_answer;

// POSTs a body that is JSON, with the message's id as idempotency key. NULL where no answer comes: failure then says to try
// again.
const outboxd_answer *post_json(const char *url, plugin_list_u8_t body, outboxd_failure *failure);

// Members of a JSON object, by their names as they are written. False where the payload is no JSON, or has no such member of
// that kind. A string is answered as it is written: escapes stay. For more than this, put a JSON library beside this file.
bool json_number(plugin_list_u8_t json, const char *name, double *number);
bool json_string(plugin_list_u8_t json, const char *name, plugin_string_t *string);

#endif

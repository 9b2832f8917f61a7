#include "outboxd.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// What is freed when the handler returns.
typedef struct owned {
    struct owned *next;
    void *memory;
} owned;

static owned *all_owned;

static void *own(void *memory)
{
    owned *entry = malloc(sizeof *entry);
    if (entry == NULL || memory == NULL)
        abort();
    *entry = (owned){all_owned, memory};
    all_owned = entry;
    return memory;
}

// A string of the host's as one of C's. An empty one brings no memory with it.
static const char *own_text(uint8_t *bytes, size_t length)
{
    char *text = own(malloc(length + 1));
    if (length > 0) {
        memcpy(text, bytes, length);
        free(bytes);
    }
    text[length] = 0;
    return text;
}

bool exports_outboxd_plugin_handler_handle(outboxd_message *message, outboxd_failure *failure)
{
    bool delivered = deliver(message, failure);
    exports_outboxd_plugin_handler_message_free(message);
    while (all_owned != NULL) {
        owned *entry = all_owned;
        all_owned = entry->next;
        free(entry->memory);
        free(entry);
    }
    return delivered;
}

// How many bytes the UTF-8 character at `at` has, or 0 where none stands there. A NUL ends the text, and every check.
static size_t character(const unsigned char *at)
{
    size_t length = at[0] < 0x80 ? 1 : at[0] < 0xC2 ? 0 : at[0] < 0xE0 ? 2 : at[0] < 0xF0 ? 3 : at[0] < 0xF5 ? 4 : 0;
    // What is longer than it need be, a surrogate, or beyond the last character shows in the second byte.
    unsigned char least = at[0] == 0xE0 ? 0xA0 : at[0] == 0xF0 ? 0x90 : 0x80;
    unsigned char most = at[0] == 0xED ? 0x9F : at[0] == 0xF4 ? 0x8F : 0xBF;
    for (size_t i = 1; i < length; i++) {
        if (at[i] < least || at[i] > most)
            return 0;
        least = 0x80;
        most = 0xBF;
    }
    return length;
}

// The contract's strings are UTF-8, and a target may answer anything: a '?' for each byte that is none.
static void only_utf8(char *text)
{
    while (*text != 0) {
        size_t length = character((const unsigned char *)text);
        if (length == 0)
            *text = '?';
        text += length > 0 ? length : 1;
    }
}

static void print(plugin_string_t *reason, const char *format, va_list values)
{
    char text[4096];
    vsnprintf(text, sizeof text, format, values);
    only_utf8(text);
    plugin_string_dup(reason, text);
}

bool cancel(outboxd_failure *failure, const char *format, ...)
{
    va_list values;
    va_start(values, format);
    failure->tag = OUTBOXD_PLUGIN_MESSAGES_FAILURE_CANCEL;
    print(&failure->val.cancel, format, values);
    va_end(values);
    return false;
}

bool retry(outboxd_failure *failure, int64_t after_ms, const char *format, ...)
{
    va_list values;
    va_start(values, format);
    failure->tag = OUTBOXD_PLUGIN_MESSAGES_FAILURE_RETRY;
    failure->val.retry.after_ms = (plugin_option_u64_t){.is_some = after_ms >= 0, .val = (uint64_t)after_ms};
    print(&failure->val.retry.reason, format, values);
    va_end(values);
    return false;
}

static plugin_string_t borrowed(const char *text)
{
    plugin_string_t string;
    plugin_string_set(&string, text);
    return string;
}

const char *setting(const char *name)
{
    plugin_string_t key = borrowed(name);
    plugin_option_string_t value;
    wasi_config_store_error_t error;
    if (!wasi_config_store_get(&key, &value, &error) || !value.is_some)
        return NULL;
    return own_text(value.val.ptr, value.val.len);
}

static const char *no_answer(const outboxd_plugin_http_http_error_t *error)
{
    switch (error->tag) {
    case OUTBOXD_PLUGIN_HTTP_HTTP_ERROR_DENIED:
        return own_text(error->val.denied.ptr, error->val.denied.len);
    case OUTBOXD_PLUGIN_HTTP_HTTP_ERROR_DNS:
        return "the host's name could not be resolved";
    case OUTBOXD_PLUGIN_HTTP_HTTP_ERROR_CONNECT:
        return "connection refused or unreachable";
    case OUTBOXD_PLUGIN_HTTP_HTTP_ERROR_TLS:
        return "the TLS handshake failed";
    case OUTBOXD_PLUGIN_HTTP_HTTP_ERROR_TIMEOUT:
        return "not in time";
    case OUTBOXD_PLUGIN_HTTP_HTTP_ERROR_TOO_LARGE:
        return "it was too large";
    default:
        return own_text(error->val.protocol.ptr, error->val.protocol.len);
    }
}

// At most a week: what is longer is no time to wait.
static int64_t retry_after_ms(plugin_list_tuple2_string_string_t headers)
{
    for (size_t i = 0; i < headers.len; i++) {
        plugin_string_t name = headers.ptr[i].f0, value = headers.ptr[i].f1;
        if (name.len != 11 || memcmp(name.ptr, "retry-after", 11) != 0)
            continue;
        int64_t seconds = 0;
        for (size_t at = 0; at < value.len; at++) {
            if (value.ptr[at] < '0' || value.ptr[at] > '9')
                return -1;
            seconds = seconds * 10 + (value.ptr[at] - '0');
            if (seconds > 7 * 24 * 60 * 60)
                return -1;
        }
        return value.len > 0 ? seconds * 1000 : -1;
    }
    return -1;
}

const outboxd_answer *post_json(const char *url, plugin_list_u8_t body, outboxd_failure *failure)
{
    if (url == NULL) {
        retry(failure, -1, "there is no URL; is it in [settings] of the manifest?");
        return NULL;
    }
    plugin_string_t key, parent;
    outboxd_plugin_context_idempotency_key(&key);
    plugin_tuple2_string_string_t headers[3] = {
        {borrowed("content-type"), borrowed("application/json")},
        {borrowed("idempotency-key"), borrowed(own_text(key.ptr, key.len))},
    };
    size_t count = 2;
    if (outboxd_plugin_context_traceparent(&parent)) {
        headers[count].f0 = borrowed("traceparent");
        headers[count++].f1 = borrowed(own_text(parent.ptr, parent.len));
    }
    outboxd_plugin_http_request_t request = {
        .method = borrowed("POST"), .url = borrowed(url), .headers = {headers, count}, .body = body};
    outboxd_plugin_http_response_t response;
    outboxd_plugin_http_http_error_t error;
    if (!outboxd_plugin_http_send(&request, &response, &error)) {
        retry(failure, -1, "no answer: %s", no_answer(&error));
        return NULL;
    }
    for (size_t i = 0; i < response.headers.len; i++) {
        plugin_string_t strings[2] = {response.headers.ptr[i].f0, response.headers.ptr[i].f1};
        for (int part = 0; part < 2; part++)
            if (strings[part].len > 0)
                own(strings[part].ptr);
    }
    if (response.headers.len > 0)
        own(response.headers.ptr);
    outboxd_answer *answer = own(malloc(sizeof *answer));
    *answer = (outboxd_answer){
        .status = response.status,
        .text = own_text(response.body.ptr, response.body.len),
        .retry_after_ms = retry_after_ms(response.headers),
        .headers = response.headers,
    };
    return answer;
}

// Reads members of a JSON object without a copy. Each function takes where a value begins and answers where it ends, or NULL
// where it is none.
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "outboxd.h"

// Deeper than this is nothing that anybody meant.
#define DEPTH_MAX 64

static const char *space(const char *at, const char *end)
{
    while (at < end && (*at == ' ' || *at == '\n' || *at == '\r' || *at == '\t'))
        at++;
    return at;
}

static const char *string(const char *at, const char *end)
{
    if (at == end || *at != '"')
        return NULL;
    for (at++; at < end && (unsigned char)*at >= ' '; at++) {
        if (*at == '"')
            return at + 1;
        if (*at != '\\')
            continue;
        if (++at == end || memchr("\"\\/bfnrtu", *at, 9) == NULL)
            return NULL;
        for (int digits = *at == 'u' ? 4 : 0; digits > 0; digits--)
            if (++at == end || !isxdigit((unsigned char)*at))
                return NULL;
    }
    return NULL;
}

static const char *digits(const char *at, const char *end)
{
    const char *first = at;
    while (at < end && *at >= '0' && *at <= '9')
        at++;
    return at > first ? at : NULL;
}

static const char *number(const char *at, const char *end)
{
    if (at < end && *at == '-')
        at++;
    at = at < end && *at == '0' ? at + 1 : digits(at, end);
    if (at != NULL && at < end && *at == '.')
        at = digits(at + 1, end);
    if (at != NULL && at < end && (*at == 'e' || *at == 'E')) {
        at++;
        at = digits(at < end && (*at == '+' || *at == '-') ? at + 1 : at, end);
    }
    return at;
}

static const char *word(const char *at, const char *end, const char *text)
{
    size_t length = strlen(text);
    return (size_t)(end - at) >= length && memcmp(at, text, length) == 0 ? at + length : NULL;
}

static const char *value(const char *at, const char *end, int depth);

// An object or an array. Of an object's member called `name`, where it is not NULL, `found` and `found_end` say where it stands.
static const char *members(const char *at, const char *end, int depth, const char *name, const char **found,
                           const char **found_end)
{
    bool object = *at == '{';
    char close = object ? '}' : ']';
    at = space(at + 1, end);
    if (at < end && *at == close)
        return at + 1;
    while (at < end) {
        bool wanted = false;
        if (object) {
            const char *key = at;
            at = string(at, end);
            if (at == NULL)
                return NULL;
            wanted = name != NULL && strlen(name) == (size_t)(at - key) - 2 && memcmp(name, key + 1, strlen(name)) == 0;
            at = space(at, end);
            if (at == end || *at != ':')
                return NULL;
            at = space(at + 1, end);
        }
        const char *begin = at;
        at = value(at, end, depth);
        if (at == NULL)
            return NULL;
        if (wanted) {
            *found = begin;
            *found_end = at;
        }
        at = space(at, end);
        if (at < end && *at == close)
            return at + 1;
        if (at == end || *at != ',')
            return NULL;
        at = space(at + 1, end);
    }
    return NULL;
}

static const char *value(const char *at, const char *end, int depth)
{
    if (at == end || depth == DEPTH_MAX)
        return NULL;
    switch (*at) {
    case '{':
    case '[':
        return members(at, end, depth + 1, NULL, NULL, NULL);
    case '"':
        return string(at, end);
    case 't':
        return word(at, end, "true");
    case 'f':
        return word(at, end, "false");
    case 'n':
        return word(at, end, "null");
    default:
        return number(at, end);
    }
}

// Of several members of one name the last one counts, as most readers have it.
static bool find(plugin_list_u8_t json, const char *name, const char **found, const char **found_end)
{
    const char *at = (const char *)json.ptr, *end = at + json.len;
    *found = NULL;
    at = space(at, end);
    if (at == end || *at != '{')
        return false;
    at = members(at, end, 0, name, found, found_end);
    return at != NULL && space(at, end) == end && *found != NULL;
}

bool json_number(plugin_list_u8_t json, const char *name, double *number)
{
    const char *begin, *end;
    char text[64];
    if (!find(json, name, &begin, &end) || (*begin != '-' && (*begin < '0' || *begin > '9')))
        return false;
    size_t length = (size_t)(end - begin);
    if (length >= sizeof text)
        return false;
    memcpy(text, begin, length);
    text[length] = 0;
    *number = strtod(text, NULL);
    return true;
}

bool json_string(plugin_list_u8_t json, const char *name, plugin_string_t *string)
{
    const char *begin, *end;
    if (!find(json, name, &begin, &end) || *begin != '"')
        return false;
    *string = (plugin_string_t){(uint8_t *)begin + 1, (size_t)(end - begin) - 2};
    return true;
}

// Reads its message as JSON and succeeds.
#include <string.h>

#include "outboxd.h"

bool deliver(const outboxd_message *message, outboxd_failure *failure)
{
    plugin_string_t what;
    if (!json_string(message->payload, "do", &what) || what.len != 7 || memcmp(what.ptr, "succeed", 7) != 0)
        return cancel(failure, "no such message was sent");
    return true;
}

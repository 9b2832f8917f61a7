#include "outboxd.h"

bool deliver(const outboxd_message *message, outboxd_failure *failure)
{
    double total;
    if (!json_number(message->payload, "total", &total))
        return cancel(failure, "the payload is not what this plugin reads: it has no number \"total\"");
    if (total < 0)
        return cancel(failure, "an order cannot cost less than nothing");

    const outboxd_answer *answer = post_json(setting("url"), message->payload, failure);
    if (answer == NULL)
        return false;
    if (answer->status < 300)
        return true;
    // "Not now": the target says when, or the topic's backoff does.
    if (answer->status == 429 || answer->status >= 500)
        return retry(failure, answer->retry_after_ms, "HTTP %d", answer->status);
    return cancel(failure, "HTTP %d: %s", answer->status, answer->text);
}

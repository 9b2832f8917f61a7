from wit_world import exports
from wit_world.imports.messages import Message

from outboxd import cancel, json_of, post, retry, setting


class Handler(exports.Handler):
    def handle(self, m: Message) -> None:
        order = json_of(m)
        if order["total"] < 0:
            raise cancel("an order cannot cost less than nothing")

        answer = post(setting("url"), order)
        if answer.status < 300:
            return
        # "Not now": the target says when, or the topic's backoff does.
        if answer.status == 429 or answer.status >= 500:
            raise retry(f"HTTP {answer.status}", answer.retry_after_ms)
        raise cancel(f"HTTP {answer.status}: {answer.text}")

"""The contract in a form that is short to use. Yours to change."""

import json
from dataclasses import dataclass
from typing import Any, Optional

from componentize_py_types import Err
from wit_world.imports import context, http, store
from wit_world.imports.messages import Failure_Cancel, Failure_Retry, Message, Retry

# The host keeps 8 KiB of a reason, and megabytes of one would end the call as a trap.
REASON_MAX = 8192


@dataclass
class Answer:
    """What came back, whatever its status."""

    status: int
    headers: dict[str, str]
    text: str
    retry_after_ms: Optional[int]


def cancel(reason: str) -> Err:
    """Never try again: the message is dead, with this text as its error. Raise it."""
    return Err(Failure_Cancel(reason[:REASON_MAX]))


def retry(reason: str, after_ms: Optional[int] = None) -> Err:
    """Try again, after `after_ms` where the target says it, else by the topic's backoff. Raise it."""
    return Err(Failure_Retry(Retry(reason[:REASON_MAX], after_ms)))


def json_of(message: Message) -> Any:
    """The payload. One that is no JSON never becomes right."""
    try:
        return json.loads(message.payload)
    except ValueError as error:
        raise cancel(f"the payload is not what this plugin reads: {error}") from None


def setting(name: str) -> str:
    """A value of `[settings]` in the manifest. Its absence is the operator's to correct, so the message waits."""
    value = store.get(name)
    if value is None:
        raise retry(f'the manifest has no "{name}" in [settings]')
    return value


def post(url: str, value: Any, headers: Optional[dict[str, str]] = None) -> Answer:
    """POSTs JSON, with the message's id as idempotency key. Where no answer comes the message is tried again."""
    sent = {"content-type": "application/json", "idempotency-key": context.idempotency_key(), **(headers or {})}
    parent = context.traceparent()
    if parent:
        sent["traceparent"] = parent
    try:
        answer = http.send(http.Request("POST", url, list(sent.items()), json.dumps(value).encode(), None))
    except Err as error:
        raise retry(f"no answer: {error.value}") from None
    came = dict(answer.headers)
    after = came.get("retry-after", "")
    after_ms = int(after) * 1000 if after.isdecimal() and len(after) < 7 else None
    return Answer(answer.status, came, answer.body.decode("utf-8", "replace"), after_ms)

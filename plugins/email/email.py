"""Sends each message as a mail, through the HTTP API of Resend; its payload is the mail: to, subject, text or html."""

import json
from email.utils import parseaddr

from componentize_py_types import Err
from wit_world import exports
from wit_world.imports import context, http, store
from wit_world.imports.messages import Failure_Cancel, Failure_Retry, Message, Retry

URL = "https://api.resend.com/emails"
FIELDS = {"to", "cc", "bcc", "reply_to", "subject", "text", "html"}


def retry(reason: str, after_ms: int | None = None) -> Err:
    return Err(Failure_Retry(Retry(reason, after_ms)))


def cancel(reason: str) -> Err:
    return Err(Failure_Cancel(reason))


class Handler(exports.Handler):
    def handle(self, m: Message) -> None:
        sender = store.get("from")
        if not sender:
            raise retry("setting `from` is missing: the sender's address, in [settings] of the manifest")
        mail = {"from": sender, **read(m.payload)}
        headers = [
            ("content-type", "application/json"),
            # Filled in by the host, on the way out.
            ("authorization", "Bearer {{secret:RESEND_KEY}}"),
            # Resend sends one mail for each key, however often it is asked, for a day.
            ("idempotency-key", context.idempotency_key()),
        ]
        url = store.get("url") or URL
        try:
            response = http.send(http.Request("POST", url, headers, json.dumps(mail).encode(), None))
        except Err as error:
            what = type(error.value).__name__.removeprefix("HttpError_").lower()
            raise retry(f"no answer: {what} {getattr(error.value, 'value', '')}".rstrip())
        judge(response)


def read(payload: bytes) -> dict:
    """The mail that the payload asks for. What makes no mail now makes none later."""
    try:
        mail = json.loads(payload)
    except ValueError as error:
        raise cancel(f"the payload is no JSON: {error}")
    if not isinstance(mail, dict):
        raise cancel("the payload is no object")
    if unknown := sorted(mail.keys() - FIELDS):
        raise cancel(f"the payload has {unknown[0]!r}, which is no part of a mail; known: {', '.join(sorted(FIELDS))}")
    to = mail.get("to")
    addresses = to if isinstance(to, list) else [to]
    if not addresses or not all(isinstance(address, str) and "@" in parseaddr(address)[1] for address in addresses):
        raise cancel(f"\"to\" is {json.dumps(to)}, no address and no list of addresses")
    if not mail.get("subject") or not (mail.get("text") or mail.get("html")):
        raise cancel('the payload lacks "subject", or both "text" and "html"')
    return mail


def judge(response: http.Response) -> None:
    status = response.status
    if 200 <= status < 300:
        return
    reason = f"the mail service answered {status}: {response.body[:200].decode(errors='replace')}"
    # 401 and 403 are the key's, which a person can correct while the message waits; 409: the first request is under way.
    if status in (401, 403, 409, 429) or status >= 500:
        wait = next((value for name, value in response.headers if name.lower() == "retry-after"), "")
        raise retry(reason, int(wait) * 1000 if wait.isdecimal() and len(wait) < 7 else None)
    raise cancel(reason)

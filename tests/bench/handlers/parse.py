"""Reads its message as JSON and succeeds."""

import json

from componentize_py_types import Err
from wit_world import exports
from wit_world.imports.messages import Failure_Cancel, Message


class Handler(exports.Handler):
    def handle(self, m: Message) -> None:
        if json.loads(m.payload)["do"] != "succeed":
            raise Err(Failure_Cancel("no such message was sent"))

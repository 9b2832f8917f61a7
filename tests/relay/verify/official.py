"""Verifies a request on stdin, {"secret", "headers", "body"}, with Standard Webhooks' library for Python; prints the body."""

import json
import sys

from standardwebhooks import Webhook

request = json.load(sys.stdin)
print(json.dumps(Webhook(request["secret"]).verify(request["body"], request["headers"])))

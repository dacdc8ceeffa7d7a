"""An addon of mitmproxy that loses answers, each after the destination has done its work.

POST /-/next {"fault", "contains", "times"}: the next answers to requests whose line and body contain that text.
GET /-/seen: what was done to whom. Faults:
  drop         the connection is closed instead of the answer
  bad_gateway  502 instead of the answer
  hang         the answer is kept for good; the caller's time runs out, or the caller dies
"""

import asyncio
import json

from mitmproxy import http


class Faults:
    """The rules that wait, and the requests that met one."""

    def __init__(self):
        self.rules, self.seen = [], []

    def request(self, flow: http.HTTPFlow) -> None:
        if flow.request.path == "/-/next":
            self.rules.append(json.loads(flow.request.content))
            flow.response = http.Response.make(204)
        elif flow.request.path == "/-/seen":
            flow.response = http.Response.make(200, json.dumps(self.seen), {"Content-Type": "application/json"})

    async def response(self, flow: http.HTTPFlow) -> None:
        if flow.request.path.startswith("/-/"):
            return
        said = f"{flow.request.method} {flow.request.path} ".encode() + flow.request.content
        rule = next((rule for rule in self.rules if rule["contains"].encode() in said), None)
        if rule is None:
            return
        rule["times"] -= 1
        if rule["times"] == 0:
            self.rules.remove(rule)
        self.seen.append({"fault": rule["fault"], "status": flow.response.status_code})
        if rule["fault"] == "drop":
            flow.kill()
        elif rule["fault"] == "bad_gateway":
            flow.response = http.Response.make(502, b"<html>Bad Gateway</html>", {"Content-Type": "text/html"})
        else:
            await asyncio.Event().wait()


addons = [Faults()]

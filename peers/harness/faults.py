"""An addon of mitmproxy that loses answers, each after the destination has done its work, and requests.

POST /-/next {"fault", "contains"}: what happens to the next request whose line and body contain that text.
GET /-/seen: what was done to whom. Faults:
  drop         the connection is closed instead of the answer
  bad_gateway  502 instead of the answer
  lost         the connection is closed instead of passing the request on
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
        elif self.met(flow, before_the_work=True):
            flow.kill()

    async def response(self, flow: http.HTTPFlow) -> None:
        fault = None if flow.request.path.startswith("/-/") else self.met(flow, before_the_work=False)
        if fault == "drop":
            flow.kill()
        elif fault == "bad_gateway":
            flow.response = http.Response.make(502, b"<html>Bad Gateway</html>", {"Content-Type": "text/html"})
        elif fault == "hang":
            await asyncio.Event().wait()

    def met(self, flow: http.HTTPFlow, before_the_work: bool) -> str | None:
        """The fault that is due for this request now; it is used up."""
        said = f"{flow.request.method} {flow.request.path} ".encode() + flow.request.content
        for rule in self.rules:
            if rule["contains"].encode() in said and (rule["fault"] == "lost") == before_the_work:
                self.rules.remove(rule)
                self.seen.append({"fault": rule["fault"], "status": flow.response and flow.response.status_code})
                return rule["fault"]
        return None


addons = [Faults()]

"""A provider that knows a repeated key: the same bytes again, and one charge."""

import json
from urllib.parse import urlencode

from ..harness.lost import Peer, under_every_fault
from ..harness.processes import Program, call, free_port
from ..harness.report import Report
from ..harness.site import Site

API_KEY = "sk_test_ledger"
FORM = "application/x-www-form-urlencoded"
REPEATED = "confirmed, attempts 2: claim safe_repeat claim confirm"
WANTED = {
    "no fault": "confirmed, attempts 1: claim confirm",
    "request lost": REPEATED,
    "answer dropped": REPEATED,
    "502 by the proxy": REPEATED,
    "no answer in time": REPEATED,
    "ledger killed (-9) before the answer": REPEATED,
}
#: What a form has to escape.
DESCRIPTION = "Müller & Söhne = 100 % + [a]"


def config(proxy_url: str) -> dict:
    return {
        "transport": "http",
        "request": {
            "url": f"{proxy_url}/v1/charges",
            "content_type": FORM,
            "auth": {"bearer": {"secret": "stripe_key"}},
            "body": {
                "amount": "{{ params.amount }}",
                "currency": "eur",
                "source": "{{ params.source }}",
                "description": "{{ params.description }}",
                "metadata": {"order": "{{ destination_key }}"},
            },
            "timeout": "4s",
        },
        "idempotency": {"mode": "key", "header": "Idempotency-Key", "window": "24h"},
        "success": {"statuses": [200], "record_id": "$.id", "when": "$.paid == true"},
    }


class Stripe:
    """The mock: its records are asked for without the proxy."""

    def __init__(self, site: Site):
        self.directory, self.port = site.own("stripe"), free_port()
        modules = site.state / "peers-npm" / "node_modules"
        self.program = Program(
            "stripe", ["node", modules / "stripe-stateful-mock/dist/cli.js"], self.directory, {"PORT": str(self.port)}
        )
        self.program.wait_listening(self.port)

    def call(self, method: str, path: str, base: str = "", form: dict | None = None, headers: dict | None = None):
        return call(
            method,
            (base or f"http://127.0.0.1:{self.port}") + path,
            urlencode(form).encode() if form else None,
            {"Authorization": f"Bearer {API_KEY}", "Content-Type": FORM, **(headers or {})},
        )

    def charges(self, order: str) -> list[dict]:
        """Every charge of this order that took money."""
        found = json.loads(self.call("GET", "/v1/charges?limit=100")[2])["data"]
        return [charge for charge in found if charge["metadata"].get("order") == order and charge["paid"]]

    def records(self, order: str) -> list[str]:
        return [charge["id"] for charge in self.charges(order)]


def run(site: Site, report: Report) -> None:
    site.server.secret("stripe_key", API_KEY)
    stripe = Stripe(site)
    proxy = site.proxy(stripe.directory, stripe.port)
    try:
        ledger = site.server.ledger("stripe")
        ledger.define("stripe", config(proxy.url), "charge", {"retry": {"max_attempts": 3}})
        peer = Peer(
            "stripe",
            site.server,
            ledger,
            proxy,
            command_type="charge",
            params=lambda _key: params("tok_visa"),
            write="POST /v1/charges ",
            records=stripe.records,
        )
        under_every_fault(peer, report, WANTED)
        form(peer, stripe, report)
        refusals(peer, stripe, report)
        control(peer, stripe, report)
    finally:
        proxy.stop()
        stripe.program.stop()


def params(source: str) -> dict:
    return {"amount": 1250, "source": source, "description": DESCRIPTION}


def form(peer: Peer, stripe: Stripe, report: Report) -> None:
    """The charge of the first scenario holds what was registered."""
    charge = stripe.charges("stripe-0")[0]
    found = (str(charge["amount"]), charge["currency"], charge["description"], charge["metadata"])
    wanted = ("1250", "eur", DESCRIPTION, {"order": "stripe-0"})
    wrong = [] if found == wanted else [f"the charge has {found}"]
    report.add("stripe", "form body", 1, peer.ledger.seen("stripe-0"), wrong)


def refusals(peer: Peer, stripe: Stripe, report: Report) -> None:
    """Answers that the provider keeps with the key, and gives again."""
    # A decline is final: one attempt, and the provider gives the same 402 to the same key.
    key = "stripe-declined"
    declined = params("tok_chargeDeclined")
    peer.ledger.register("charge", key, declined)
    seen = peer.ledger.at_rest(key)
    report.compare("stripe", "402", stripe.records(key), 0, seen, "failed (permanent), attempts 1: claim refused")
    sent = {**declined, "currency": "eur", "metadata[order]": key}
    status, headers, _ = stripe.call("POST", "/v1/charges", form=sent, headers={"Idempotency-Key": key})
    replayed = headers.get("idempotent-replayed")
    wrong = [] if (status, replayed) == (402, "true") else [f"answered {status}, idempotent-replayed {replayed}"]
    if peer.ledger.register("charge", key, declined) != "replayed" or peer.ledger.seen(key).attempts != 1:
        wrong.append("registering it again sent it again")
    report.add("stripe", "402, asked for again", len(stripe.records(key)), peer.ledger.seen(key), wrong)

    # The decline is lost: the repeat gets it again. What may have been sent is not called a failure by the ledger alone.
    key = "stripe-declined-lost"
    peer.proxy.next("drop", peer.write)
    peer.ledger.register("charge", key, declined)
    seen = peer.ledger.at_rest(key)
    wanted = "needs_reconciliation (uncertain), attempts 2: claim safe_repeat claim uncertain"
    report.compare("stripe", "402 dropped, replayed", stripe.records(key), 0, seen, wanted)

    # 500 is kept as well: the budget ends, with a question.
    key = "stripe-500"
    peer.ledger.register("charge", key, params("tok_500|tok_visa|a"))
    seen = peer.ledger.at_rest(key)
    wanted = "needs_reconciliation (uncertain), attempts 3: claim safe_repeat claim safe_repeat claim uncertain"
    report.compare("stripe", "500, replayed", stripe.records(key), 0, seen, wanted)

    # 429 is not kept: the next try is made.
    key = "stripe-429"
    peer.ledger.register("charge", key, params("tok_429|tok_visa|b"))
    seen = peer.ledger.at_rest(key)
    report.compare("stripe", "429", stripe.records(key), 1, seen, "confirmed, attempts 2: claim not_sent claim confirm")


def control(peer: Peer, stripe: Stripe, report: Report) -> None:
    """A client that tries again without a key of its intent."""
    peer.proxy.next("drop", peer.write)
    sent = {"amount": 1250, "currency": "eur", "source": "tok_visa", "metadata[order]": "stripe-naive"}
    for _ in range(2):
        try:
            stripe.call("POST", "/v1/charges", base=peer.proxy.url, form=sent)
            break
        except OSError:
            continue
    report.control("stripe", "answer dropped", stripe.records("stripe-naive"), 2)

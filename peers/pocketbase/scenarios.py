"""A store with a unique reference: a repeat is refused with 400, and the refusal leads to the record that is there."""

import json
from urllib.parse import quote

from ..harness.lost import Peer, deliver, under_every_fault
from ..harness.processes import Failed, Program, call, free_port
from ..harness.processes import run as run_program
from ..harness.report import Report
from ..harness.site import Site

USER, PASSWORD = "ledger@example.com", "only-for-this-run"
REFUSED = "confirmed, attempts 2: claim safe_repeat claim uncertain lookup_found"
WANTED = {
    "no fault": "confirmed, attempts 1: claim confirm",
    "request lost": "confirmed, attempts 2: claim safe_repeat claim confirm",
    "answer dropped": REFUSED,
    "502 by the proxy": REFUSED,
    "no answer in time": REFUSED,
    "ledger killed (-9) before the answer": REFUSED,
}
#: The key as a text of its filter language: a quote in it must not end it.
FILTER = r"""filter=reference%3D%27{{ destination_key | replace("'", "\\'") }}%27"""
FIELDS = [
    {"name": "reference", "type": "text", "required": True},
    {"name": "item", "type": "text", "required": True},
    {"name": "quantity", "type": "number"},
]


def config(proxy_url: str) -> dict:
    records = f"{proxy_url}/api/collections/orders/records"
    return {
        "transport": "http",
        "request": {
            "url": records,
            # It takes its token bare, without a scheme.
            "auth": {"header": {"name": "Authorization", "value": {"secret": "pocketbase_token"}}},
            "body": {
                "reference": "{{ destination_key }}",
                "item": "{{ params.item }}",
                "quantity": "{{ params.quantity }}",
            },
            "timeout": "4s",
        },
        "idempotency": {"mode": "reference", "window": "unlimited"},
        "success": {"statuses": [200], "record_id": "$.id"},
        # Refused because it is there: not a failure, and not yet a proof either.
        "rules": [
            {"status": 400, "when": '$.data.reference.code == "validation_not_unique"', "outcome": "lookup"},
        ],
        "lookup": lookup(records),
    }


def lookup(records: str) -> dict:
    """How to ask for the record of a key."""
    return {
        "url": f"{records}?{FILTER}",
        "records": "$.items[*]",
        "match": "$.reference",
        "record_id": "$.id",
        "settle_delay": "5s",
        "interval": "500ms",
    }


class PocketBase:
    """The server, with one collection whose reference is unique and one without that."""

    def __init__(self, site: Site, name: str):
        self.directory, self.port = site.own(name), free_port()
        binary, data = site.program("peers", "pocketbase"), self.directory / "data"
        run_program([binary, "superuser", "upsert", USER, PASSWORD, "--dir", data], self.directory)
        command = [binary, "serve", "--http", f"127.0.0.1:{self.port}", "--dir", data]
        self.program = Program("pocketbase", command, self.directory)
        self.program.wait_listening(self.port)
        self.token = ""
        login = {"identity": USER, "password": PASSWORD}
        self.token = self.call("POST", "/api/collections/_superusers/auth-with-password", login)["token"]
        unique = "CREATE UNIQUE INDEX one_reference ON orders (reference)"
        for collection, indexes in (("orders", [unique]), ("notes", [])):
            self.call(
                "POST", "/api/collections", {"name": collection, "type": "base", "fields": FIELDS, "indexes": indexes}
            )

    def call(self, method: str, path: str, document: dict | None = None, base: str = "") -> dict:
        status, _, body = call(
            method,
            (base or f"http://127.0.0.1:{self.port}") + path,
            json.dumps(document).encode() if document else None,
            {"Authorization": self.token, "Content-Type": "application/json"},
        )
        if status != 200:
            raise Failed(f"PocketBase answers {status} to {method} {path}: {body[:300]}")
        return json.loads(body)

    def records(self, reference: str, collection: str = "orders") -> list[str]:
        escaped = reference.replace("'", "\\'")
        where = quote(f"reference = '{escaped}'")
        found = self.call("GET", f"/api/collections/{collection}/records?filter={where}")
        return [record["id"] for record in found["items"]]


def params(_key: str) -> dict:
    return {"item": "BEARING-6204", "quantity": 40}


def run(site: Site, report: Report) -> None:
    store = PocketBase(site, "pocketbase")
    site.server.secret("pocketbase_token", store.token)
    proxy = site.proxy(store.directory, store.port)
    try:
        ledger = site.server.ledger("pocketbase")
        ledger.define("pocketbase", config(proxy.url), "order", {})
        peer = Peer(
            "pocketbase",
            site.server,
            ledger,
            proxy,
            command_type="order",
            params=params,
            write="POST /api/collections/orders/records ",
            records=store.records,
        )
        under_every_fault(peer, report, WANTED)
        refusals(peer, store, report)
        control(peer, store, report)
    finally:
        proxy.stop()
        store.program.stop()


def refusals(peer: Peer, store: PocketBase, report: Report) -> None:
    """400 because it is there, and 400 for another reason."""
    key = "pocketbase-there"
    made = store.call("POST", "/api/collections/orders/records", {"reference": key, **params(key)})
    peer.ledger.register("order", key, params(key))
    seen = peer.ledger.at_rest(key)
    wanted = "confirmed, attempts 1: claim uncertain lookup_found"
    report.compare("pocketbase", "reference already there", store.records(key), 1, seen, wanted)
    if seen.record_id != made["id"]:
        report.failed("pocketbase", f"confirmed with {seen.record_id}, made before was {made['id']}")

    key = "pocketbase-o'brien' || 1 = 1 || 'x"
    seen = deliver(peer, key, "answer dropped")
    report.compare("pocketbase", "answer dropped, quotes in the key", store.records(key), 1, seen, REFUSED)

    key = "pocketbase-refused"
    peer.ledger.register("order", key, {"item": "", "quantity": 40})
    seen = peer.ledger.at_rest(key)
    wanted = "failed (permanent), attempts 1: claim refused"
    report.compare("pocketbase", "400 for another field", store.records(key), 0, seen, wanted)


def control(peer: Peer, store: PocketBase, report: Report) -> None:
    """A client that tries again: two records where nothing is unique, and where it is, one that it calls a failure."""
    for collection, records, wanted in (("notes", 2, "made"), ("orders", 1, "refused")):
        path = f"/api/collections/{collection}/records"
        reference = f"naive-{collection}"
        told = "lost"
        peer.proxy.next("drop", f"POST {path} ")
        for _ in range(2):
            try:
                store.call("POST", path, {"reference": reference, **params(reference)}, base=peer.proxy.url)
                told = "made"
                break
            except Failed:
                told = "refused"
            except OSError:
                continue
        fault = f"answer dropped ({collection}: the repeat is {told})"
        report.control("pocketbase", fault, store.records(reference, collection), records)
        if told != wanted:
            report.failed("pocketbase", f"{fault}, wanted {wanted}")

"""An ERP that knows no keys: after a lost answer it is asked what it has, by the purchase's reference."""

import base64
import copy
import hashlib
import json
from pathlib import Path

from ..harness.lost import Peer, under_every_fault
from ..harness.processes import Failed, Program, call, free_port
from ..harness.processes import run as run_program
from ..harness.report import Report
from ..harness.server import Server
from ..harness.site import Site

PASSWORD = "only-for-this-run"
MODEL = "model.purchase.purchase"
FOUND = "confirmed, attempts 1: claim uncertain lookup_found"
WANTED = {
    "no fault": "confirmed, attempts 1: claim confirm",
    "request lost": "confirmed, attempts 2: claim uncertain lookup_absent claim confirm",
    "answer dropped": FOUND,
    "502 by the proxy": FOUND,
    "no answer in time": FOUND,
    "ledger killed (-9) before the answer": "confirmed, attempts 1: claim lease_over lookup_found",
}
CONFIG = """
[database]
uri = postgresql://postgres@/?host={directory}&port={database_port}
path = {files}
[web]
listen = 127.0.0.1:{port}
"""


class Tryton:
    """The server with a PostgreSQL of its own, which is not the one that is killed."""

    def __init__(self, site: Site):
        self.directory, self.port = site.own("tryton"), free_port()
        kept = self.kept(site)
        self.database = Server(
            site.server.programs, site.directory / "tpg", preload=False, copy_of=kept if kept.exists() else None
        )
        config = self.directory / "tryton.conf"
        config.write_text(
            CONFIG.format(
                directory=self.database.directory,
                database_port=self.database.port,
                files=self.directory / "files",
                port=self.port,
            )
        )
        if not kept.exists():
            self.make(site, config)
            self.database.keep(kept)
        said = self.database.comment("tryton")
        self.currency, self.supplier, self.company = map(int, said.split())
        command = [site.program("peers-tryton", "trytond"), "-c", config, "-d", "tryton"]
        self.program = Program("trytond", command, self.directory)
        self.program.wait_listening(self.port, 120)
        self.session = ""
        user, token, _ = self.ask("common.db.login", "admin", {"password": PASSWORD})
        self.session = "Session " + base64.b64encode(f"admin:{user}:{token}".encode()).decode()

    def make(self, site: Site, config: Path) -> None:
        """The database with the module and one company. It takes a minute of two cores, so a copy is kept."""
        self.database.database("tryton")
        password = self.directory / "password"
        password.write_text(PASSWORD)
        admin = [site.program("peers-tryton", "trytond-admin"), "-c", config, "-d", "tryton", "--all"]
        admin += ["--activate-dependencies", "-u", "purchase", "--email", "admin@example.com"]
        environment = {"HOME": str(self.directory), "TRYTONPASSFILE": str(password)}
        run_program(admin, self.directory, env=environment)
        python = site.program("peers-tryton", "python")
        said = run_program([python, site.code / "tryton" / "setup.py", config], self.directory)
        self.database.comment("tryton", " ".join(said.split()[-3:]))

    @staticmethod
    def kept(site: Site) -> Path:
        """The copy that these versions and this set-up have made."""
        made_by = [path.name for path in sorted((site.state / "peers-tryton").glob("have-*"))]
        made_by += [str(site.server.programs), PASSWORD, (site.code / "tryton" / "setup.py").read_text()]
        return site.directory.parent / f"tryton.{hashlib.sha256(repr(made_by).encode()).hexdigest()[:16]}"

    def ask(self, method: str, *parameters, base: str = ""):
        """A call over JSON-RPC, past the proxy if no other way is given."""
        status, _, body = call(
            "POST",
            (base or f"http://127.0.0.1:{self.port}") + "/tryton/rpc/",
            json.dumps({"id": 1, "method": method, "params": parameters}).encode(),
            {"Content-Type": "application/json", "Authorization": self.session},
            timeout_s=60,
        )
        answer = json.loads(body) if status == 200 else {}
        if "result" not in answer:
            raise Failed(f"Tryton answers {status} to {method}: {body[:300]}")
        return answer["result"]

    def purchase(self, reference, party, description, quantity, price) -> dict:
        """The values of one purchase with one line, as they are or as templates."""
        line = {
            "description": description,
            "quantity": quantity,
            "unit_price": {"__class__": "Decimal", "decimal": price},
        }
        return {
            "company": self.company,
            "currency": self.currency,
            "party": party,
            "reference": reference,
            "lines": [["create", [line]]],
        }

    def records(self, reference: str) -> list[int]:
        context = {"company": self.company}
        return self.ask(f"{MODEL}.search", [["reference", "=", reference]], 0, None, None, context)

    def stop(self) -> None:
        self.program.stop()
        self.database.stop()

    def config(self, proxy_url: str, secret: str) -> dict:
        """The destination."""
        auth = {"header": {"name": "Authorization", "value": {"secret": secret}}}
        url, context = f"{proxy_url}/tryton/rpc/", {"company": self.company}
        names = ("party", "item", "quantity", "unit_price")
        made = self.purchase("{{ destination_key }}", *(f"{{{{ params.{name} }}}}" for name in names))
        search = [["reference", "=", "{{ destination_key }}"]], 0, 10, None, ["id", "reference", "state"], context
        return {
            "transport": "http",
            "request": {
                "url": url,
                "auth": auth,
                "body": {"id": 1, "method": f"{MODEL}.create", "params": [[made], context]},
                "timeout": "8s",
            },
            # Every answer is a 200. What it means stands in the body.
            "success": {"statuses": [200], "when": "exists($.result[0])", "record_id": "$.result[0]"},
            "rules": [
                # It says why it refused, after it has undone everything. Any other error is not known: looked up.
                {"status": 200, "when": '$.error[0] == "UserError"', "outcome": "permanent"},
            ],
            "lookup": {
                "method": "POST",
                "url": url,
                "auth": auth,
                "body": {"id": 1, "method": f"{MODEL}.search_read", "params": search},
                "records": "$.result[*]",
                "match": "$.reference",
                "record_id": "$.id",
                "when": '$.state != "cancelled"',
                "settle_delay": "9s",
                "interval": "500ms",
            },
        }

    def params(self, _key: str = "") -> dict:
        return {"party": self.supplier, "item": "BEARING-6204", "quantity": 40, "unit_price": "12.50"}


def run(site: Site, report: Report) -> None:
    tryton = Tryton(site)
    site.server.secret("tryton_session", tryton.session)
    site.server.secret("tryton_ended", tryton.session[:-8] + base64.b64encode(b"noone!").decode())
    proxy = site.proxy(tryton.directory, tryton.port)
    try:
        ledger = site.server.ledger("tryton")
        ledger.define("tryton", tryton.config(proxy.url, "tryton_session"), "purchase", {})
        peer = Peer(
            "tryton",
            site.server,
            ledger,
            proxy,
            command_type="purchase",
            params=tryton.params,
            write=f"{MODEL}.create",
            records=tryton.records,
        )
        under_every_fault(peer, report, WANTED)
        refusals(peer, tryton, report)
        control(peer, tryton, report)
    finally:
        proxy.stop()
        tryton.stop()


def refusals(peer: Peer, tryton: Tryton, report: Report) -> None:
    """200 with an error in the body: one that the ERP explains, and one that it does not; and a session that has ended."""
    ledger = peer.ledger
    key = "tryton-refused"
    ledger.register("purchase", key, {**tryton.params(), "party": 999_999})
    wanted = "failed (permanent), attempts 1: claim refused"
    report.compare("tryton", "200 with a UserError", tryton.records(key), 0, ledger.at_rest(key), wanted)

    key = "tryton-number"
    ledger.register("purchase", key, {**tryton.params(), "unit_price": "much"})
    report.compare("tryton", "400 for what is no number", tryton.records(key), 0, ledger.at_rest(key), wanted)

    # A field that it does not know: the error is a text of the language it is written in.
    key = "tryton-error"
    document = tryton.config(peer.proxy.url, "tryton_session")
    body = copy.deepcopy(document["request"]["body"])
    body["params"][0][0]["colour"] = "red"
    ledger.define("tryton", document, "coloured", {"request": {"body": body}, "retry": {"max_attempts": 2}})
    ledger.register("coloured", key, tryton.params())
    tries = "claim uncertain lookup_absent claim uncertain lookup_absent"
    wanted = f"needs_reconciliation (uncertain), attempts 2: {tries}"
    report.compare("tryton", "200 with another error", tryton.records(key), 0, ledger.at_rest(key), wanted)

    key = "tryton-session"
    ledger.define("ended", tryton.config(peer.proxy.url, "tryton_ended"), "ended", {})
    ledger.register("ended", key, tryton.params())
    wanted = "failed (permission), attempts 1: claim refused"
    report.compare("tryton", "session ended (401)", tryton.records(key), 0, ledger.at_rest(key), wanted)


def control(peer: Peer, tryton: Tryton, report: Report) -> None:
    """A client that tries again."""
    reference = "tryton-naive"
    made = tryton.purchase(reference, *tryton.params().values())
    peer.proxy.next("drop", peer.write)
    for _ in range(2):
        try:
            tryton.ask(f"{MODEL}.create", [made], {"company": tryton.company}, base=peer.proxy.url)
            break
        except OSError:
            continue
    report.control("tryton", "answer dropped", tryton.records(reference), 2)

"""The agent of examples/langgraph, killed where its checkpoint does not help, with and without the ledger."""

import signal

from ..harness.ledger import Ledger
from ..harness.processes import Failed, Program
from ..harness.proxy import Proxy
from ..harness.report import Report
from ..harness.site import Site
from ..pocketbase.scenarios import PocketBase, lookup

COLLECTION = "requisitions"
WRITE = f"POST /api/collections/{COLLECTION}/records "
ORDER = "We run low on BEARING-6204: order 40."
FIELDS = [
    {"name": "reference", "type": "text", "required": True},
    {"name": "material", "type": "text"},
    {"name": "quantity", "type": "number"},
]
SETUP = """
CREATE TABLE requisition (number text PRIMARY KEY, material text, quantity numeric);
CREATE ROLE agent LOGIN;
GRANT SELECT, INSERT ON requisition TO agent;
GRANT CREATE ON SCHEMA public TO agent;
SELECT command_ledger.grant_access('agent', 'propose', 'default', '{create_requisition}')
"""
ONCE = "confirmed, attempts 1: claim confirm"
DIED = "confirmed, attempts 1: claim lease_over lookup_found"
FOUND = "confirmed, attempts 1: claim uncertain lookup_found"


def config(base: str) -> dict:
    """A system that enforces nothing and can be searched."""
    records = f"{base}/api/collections/{COLLECTION}/records"
    return {
        "transport": "http",
        "request": {
            "url": records,
            "auth": {"bearer": {"secret": "langgraph_token"}},
            "body": {
                "reference": "{{ destination_key }}",
                "material": "{{ params.material }}",
                "quantity": "{{ params.quantity }}",
            },
            "timeout": "4s",
        },
        "success": {"statuses": [200], "record_id": "$.id"},
        "lookup": lookup(records),
    }


class Agents:
    """Runs of the agent against one database and one system, by thread."""

    def __init__(self, site: Site, store: PocketBase, proxy: Proxy, report: Report):
        self.site, self.store, self.proxy, self.report, self.runs = site, store, proxy, report, 0
        self.ledger: Ledger = site.server.ledger("langgraph")
        self.ledger.define("erp", config(proxy.url), "create_requisition", {})
        for statement in SETUP.split(";"):
            self.ledger.rows(statement)
        self.naive = [f"{proxy.url}/api/collections/{COLLECTION}/records", store.token]

    def start(self, thread: str, when: str = "never", request: str = ORDER, erp: list | None = None) -> Program:
        self.runs += 1
        python = self.site.program("peers-langgraph", "python")
        conninfo = self.ledger.conninfo.replace("user=postgres", "user=agent")
        command = [python, self.site.code / "langgraph" / "killed.py", self.site.examples / "langgraph", when]
        command += [conninfo, thread, request, *(erp or [])]
        return Program(f"agent-{self.runs}", command, self.store.directory)

    def says(self, thread: str, request: str = ORDER, erp: list | None = None) -> str:
        """Runs to the end; what the model says last."""
        program = self.start(thread, "never", request, erp)
        if program.wait_ended(90):
            raise Failed(f"the agent failed:\n{program.tail()}")
        return program.tail().strip().splitlines()[-1]

    def killed(self, thread: str, when: str, erp: list | None = None) -> None:
        status = self.start(thread, when, ORDER, erp).wait_ended(90)
        if status != -signal.SIGKILL:
            raise Failed(f"the agent was to be killed {when}, and ended with {status}")

    def key(self, thread: str) -> str:
        return self.ledger.one("SELECT command_ledger.derive_key('requisition', %s, 'BEARING-6204')", thread)

    def compare(self, thread: str, fault: str, said: str, wanted_said: str, wanted: str) -> None:
        """One record, one business row, one command, and the model was told so."""
        key = self.key(thread)
        records = self.store.records(key, COLLECTION)
        self.report.compare("langgraph", fault, records, 1, self.ledger.at_rest(key), wanted)
        rows = self.ledger.one("SELECT count(*) FROM requisition WHERE number = %s", key)
        commands = self.ledger.one("SELECT count(*) FROM command_ledger.command WHERE run_id = %s", thread)
        expected = wanted_said.format(record=records[0] if records else "?")
        if (rows, commands, said) != (1, 1, expected):
            self.report.failed(
                "langgraph", f"{fault}: {rows} rows, {commands} commands, said {said!r}, not {expected!r}"
            )


def run(site: Site, report: Report) -> None:
    store = PocketBase(site, "langgraph")
    store.call("POST", "/api/collections", {"name": COLLECTION, "type": "base", "fields": FIELDS})
    site.server.secret("langgraph_token", store.token)
    proxy = site.proxy(store.directory, store.port)
    try:
        agents = Agents(site, store, proxy, report)
        with_the_ledger(agents)
        without_it(agents)
    finally:
        proxy.stop()
        store.program.stop()


def with_the_ledger(agents: Agents) -> None:
    ordered = "The order: ordered: {record}"
    agents.compare("calm", "no fault", agents.says("calm"), ordered, ONCE)
    for when, fault in (
        ("after_effect", "agent killed (-9) between effect and checkpoint"),
        ("after_commit", "agent killed (-9) after the tool's COMMIT"),
    ):
        agents.killed(when, when)
        agents.compare(when, fault, agents.says(when), ordered, ONCE)

    agents.proxy.next("drop", WRITE)
    agents.compare("lost", "answer dropped", agents.says("lost"), ordered, FOUND)

    agents.proxy.next("drop", WRITE)
    agents.killed("both", "after_effect")
    agents.compare("both", "answer dropped, then agent killed (-9)", agents.says("both"), ordered, FOUND)

    agents.proxy.next("hang", WRITE)
    agents.killed("crash", "after_commit")
    agents.proxy.wait_seen(3)
    agents.site.server.crash_and_restart()
    agents.compare("crash", "agent and ledger killed (-9)", agents.says("crash"), ordered, DIED)

    # The thread goes on, and the model wants another quantity of the same.
    agents.says("changed")
    said = agents.says("changed", "We run low on BEARING-6204: order 41.")
    conflict = "The order: conflict: this thread has ordered BEARING-6204 before, in another quantity; nothing was sent"
    agents.compare("changed", "the model asks again, with 41", said, conflict, ONCE)


def without_it(agents: Agents) -> None:
    """The same graph and checkpointer, and a tool that calls the system itself."""
    agents.killed("naive", "after_effect", agents.naive)
    agents.says("naive", erp=agents.naive)
    fault = "agent killed (-9) between effect and checkpoint"
    agents.report.control("langgraph", fault, agents.store.records("naive", COLLECTION), 2)

    # The call fails, so the run does; whoever looks after it starts the thread again.
    agents.proxy.next("drop", WRITE)
    if not agents.start("naive-lost", erp=agents.naive).wait_ended(90):
        raise Failed("the agent does not notice that its call was lost")
    agents.says("naive-lost", erp=agents.naive)
    agents.report.control("langgraph", "answer dropped", agents.store.records("naive-lost", COLLECTION), 2)

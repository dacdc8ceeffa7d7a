"""A pull worker between the ledger and a stream, killed at each step."""

import asyncio
import json
import signal

import nats
from nats.js.api import StreamConfig

from ..harness.ledger import Ledger
from ..harness.processes import Failed, Program, eventually, free_port
from ..harness.report import Report
from ..harness.site import Site

STREAM, SUBJECT = "ORDERS", "orders.created"
#: A stream that forgets its message ids at once.
FORGETFUL, FORGOTTEN = "NOTES", "notes.created"
ONCE = "confirmed, attempts 1: claim confirm"
TWICE = "confirmed, attempts 2: claim safe_repeat claim confirm"
TOGETHER = 40


class Stream:
    """The server, and what its streams hold."""

    def __init__(self, site: Site):
        self.site, self.directory, self.port = site, site.own("nats"), free_port()
        self.url = f"nats://127.0.0.1:{self.port}"
        self.start()
        self.ask(self.make)

    def start(self) -> None:
        command = [self.site.program("peers", "nats-server"), "--jetstream", "--addr", "127.0.0.1", "--port", self.port]
        self.program = Program("nats", [*command, "--store_dir", self.directory / "store"], self.directory)
        self.program.wait_listening(self.port)

    def kill9_and_restart(self) -> None:
        self.program.kill9()
        self.start()

    def ask(self, question, *arguments):
        """What a coroutine answers that is given a JetStream."""

        async def asked():
            client = await nats.connect(self.url)
            try:
                return await question(client.jetstream(), *arguments)
            finally:
                await client.close()

        return asyncio.run(asked())

    @staticmethod
    async def make(jetstream) -> None:
        await jetstream.add_stream(StreamConfig(name=STREAM, subjects=[SUBJECT], duplicate_window=120))
        await jetstream.add_stream(StreamConfig(name=FORGETFUL, subjects=[FORGOTTEN], duplicate_window=0.1))

    @staticmethod
    async def all_of(jetstream, stream: str) -> list[tuple[str, str]]:
        """Place and order of each message."""
        last = (await jetstream.stream_info(stream)).state.last_seq
        messages = [await jetstream.get_msg(stream, place) for place in range(1, last + 1)]
        return [(f"{stream}:{message.seq}", json.loads(message.data)["order"]) for message in messages]

    def records(self, order: str, stream: str = STREAM) -> list[str]:
        return [place for place, of in self.ask(self.all_of, stream) if of == order]


class Workers:
    """Runs of the example's worker."""

    def __init__(self, site: Site, stream: Stream, ledger: Ledger):
        self.site, self.stream, self.ledger, self.runs = site, stream, ledger, 0
        self.held = stream.directory / "held"

    def start(self, when: str = "never", destination: str = "nats", subject: str = SUBJECT) -> Program:
        self.runs += 1
        command = [self.site.program("peers", "python"), self.site.code / "nats" / "killed.py"]
        command += [self.site.examples / "python", when, self.held]
        command += [self.ledger.conninfo, self.stream.url, destination, subject]
        return Program(f"worker-{self.runs}", command, self.stream.directory)

    def finish(self, destination: str = "nats", subject: str = SUBJECT) -> None:
        worker = self.start("never", destination, subject)
        if worker.wait_ended():
            raise Failed(f"the worker failed:\n{worker.tail()}")

    def killed(self, when: str, destination: str = "nats", subject: str = SUBJECT) -> None:
        status = self.start(when, destination, subject).wait_ended()
        if status != -signal.SIGKILL:
            raise Failed(f"the worker was to be killed {when}, and ended with {status}")

    def hold(self, when: str) -> Program:
        """A worker that waits at this step."""
        worker = self.start(when)
        eventually(f"the worker is {when}", self.held.exists)
        return worker

    def let_go(self, worker: Program) -> int:
        self.held.unlink()
        return worker.wait_ended()

    def due_again(self, key: str) -> None:
        """Waits until the lease of the dead worker was judged. The server does that, not a worker."""
        eventually(f"the lease of {key} is over", lambda: self.ledger.status(key) == "approved")


def run(site: Site, report: Report) -> None:
    stream = Stream(site)
    try:
        ledger = site.server.ledger("nats")
        pull = {"transport": "pull", "idempotency": {"mode": "key", "window": "2m", "margin": "10s"}}
        ledger.define("nats", pull, "publish", {})
        pull["idempotency"] = {"mode": "key", "window": "1s", "margin": "0ms"}
        ledger.define("forgetful", pull, "note", {})
        workers = Workers(site, stream, ledger)
        killed(workers, report)
        together(workers, report)
        forgotten(workers, report)
    finally:
        stream.program.stop()


def killed(workers: Workers, report: Report) -> None:
    ledger, stream = workers.ledger, workers.stream

    def register(key: str) -> str:
        ledger.register("publish", key, {"order": key})
        return key

    def compare(key: str, fault: str, wanted: str) -> None:
        report.compare("nats", fault, stream.records(key), 1, ledger.at_rest(key), wanted)

    key = register("nats-calm")
    workers.finish()
    compare(key, "no fault", ONCE)

    for when, fault in (
        ("before_publish", "worker killed (-9) before it publishes"),
        ("after_publish", "worker killed (-9) between publish and confirm"),
    ):
        key = register(f"nats-{when}")
        workers.killed(when)
        workers.due_again(key)
        workers.finish()
        compare(key, fault, TWICE)

    key = register("nats-both")
    workers.killed("after_publish")
    stream.kill9_and_restart()
    workers.due_again(key)
    workers.finish()
    compare(key, "worker and NATS killed (-9) between publish and confirm", TWICE)

    # The stream's server dies before the message: the worker does not know, and says so.
    key = register("nats-down")
    worker = workers.hold("before_publish_held")
    stream.program.kill9()
    if workers.let_go(worker) != 1:
        raise Failed("the worker did not notice that NATS was killed")
    stream.start()
    workers.due_again(key)
    workers.finish()
    compare(key, "NATS killed (-9) before the message arrives", TWICE)

    # The ledger's server dies while the worker holds the stream's answer.
    key = register("nats-crash")
    worker = workers.hold("after_publish_held")
    workers.site.server.crash_and_restart()
    if workers.let_go(worker) == 0:
        raise Failed("the worker did not notice that its server was killed")
    workers.due_again(key)
    workers.finish()
    compare(key, "ledger killed (-9) between publish and confirm", TWICE)


def together(workers: Workers, report: Report) -> None:
    """Several workers, one of them killed in the middle: each command once."""
    ledger, stream = workers.ledger, workers.stream
    keys = [f"nats-many-{number:02}" for number in range(TOGETHER)]
    for key in keys:
        ledger.register("publish", key, {"order": key})
    workers.killed("after_publish")
    started = [workers.start() for _ in range(3)]
    if any([worker.wait_ended() for worker in started]):
        raise Failed(f"a worker failed:\n{started[0].tail()}")
    # What the dead one had taken comes back when its lease is over.
    for key in keys:
        eventually(f"{key} is confirmed or due", lambda key=key: ledger.status(key) in ("confirmed", "approved"))
    workers.finish()
    orders = [order for _, order in stream.ask(stream.all_of, STREAM) if order in keys]
    seen = [ledger.seen(key) for key in keys]
    sound = [one for one in seen if one.status == "confirmed" and one.journal_whole and not one.maybe_sent]
    wrong = [] if sorted(orders) == keys and len(sound) == TOGETHER else [f"{len(sound)} confirmed, messages {orders}"]
    fault = f"{TOGETHER} commands, 3 workers, one more killed (-9)"
    report.add("nats", fault, len(orders), f"{len(sound)} confirmed", wrong)


def forgotten(workers: Workers, report: Report) -> None:
    """The stream has forgotten the id when the lease is over: not sent again, a question. A person finds the message."""
    ledger, stream, key = workers.ledger, workers.stream, "nats-forgotten"
    ledger.register("note", key, {"order": key})
    workers.killed("after_publish", "forgetful", FORGOTTEN)
    seen = ledger.at_rest(key)
    workers.finish("forgetful", FORGOTTEN)
    records = stream.records(key, FORGETFUL)
    wanted = "needs_reconciliation (uncertain), attempts 1: claim lease_over"
    report.compare("nats", "worker killed (-9), the stream's window is over", records, 1, seen, wanted)
    ledger.rows("SELECT command_ledger.reconcile(%s, 'found', %s)", key, records[0])
    wanted = "confirmed, attempts 1: claim lease_over reconcile_found"
    report.compare("nats", "and a person has found it", stream.records(key, FORGETFUL), 1, ledger.seen(key), wanted)

    # An outbox table without the ledger: publish, mark as done, and killed between the two.
    ledger.rows("CREATE TABLE outbox (message text, done boolean DEFAULT false)")
    ledger.rows("INSERT INTO outbox VALUES ('nats-naive')")
    for killed_before_mark in (True, False):
        (message,) = ledger.rows("SELECT message FROM outbox WHERE NOT done")[0]
        stream.ask(publish_plainly, message)
        if not killed_before_mark:
            ledger.rows("UPDATE outbox SET done = true")
    report.control("nats", "killed between publish and mark", stream.records("nats-naive"), 2)


async def publish_plainly(jetstream, message: str) -> None:
    await jetstream.publish(SUBJECT, json.dumps({"order": message}).encode())

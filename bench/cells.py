"""The statements, one at a time: what the extension costs beside what PostgreSQL costs for the same rows."""

import os

from measure import QUICK, PARAMS, Budget, Cell, Server, setting, turns

CONFIRMED = "SELECT count(*) FROM command_ledger.command_event WHERE kind = 'confirm'"
SETTLED = "SELECT count(*) FROM floors.event WHERE kind = 2"
ARCHIVED = "SELECT count(*) FROM floors.archive"
# Registers for each claim-and-confirm of a hundred: a few less, so that the backlog never runs dry.
BATCH = 95
WAITING = setting("BACKLOG", 1_000, 1_000)
DRAIN = setting("DRAIN", 8_000, 30_000)


def floor(name, script, **more):
    return Cell(name, script, "reset_floors.sql", **more)


def queue(name, script, **more):
    return Cell(name, script, "reset_queue.sql", units=ARCHIVED, **more)


def pgmq(name, script, **more):
    return Cell(name, script, "reset_pgmq.sql", schema="pgmq", units="SELECT count(*) FROM pgmq.a_bench", **more)


def ledger(name, script, **more):
    return Cell(name, script, "reset_ledger.sql", schema="command_ledger", **more)


def drain(make, name, script, **more):
    """Claims and confirms a hundred at a time until four fifths of the backlog are gone."""
    return make(name, script, backlog=DRAIN, amount=DRAIN * 4 // 5 // 100, **more)


ALWAYS = [
    floor("F1", "f1"),
    floor("F3", "f3"),
    floor("F4", "f4"),
    ledger("register", "register"),
    floor("F5", "f5", sample=0.2),
    ledger("replay", "replay", sample=0.2),
    floor("F6", "f6", units=SETTLED, backlog=WAITING),
    floor("F6_one", "f6_one", units=SETTLED, backlog=WAITING),
    ledger("cycle", "cycle", units=CONFIRMED, backlog=WAITING),
    floor("F6_batch", f"f4@{BATCH} f6_hundred@1", units=SETTLED, backlog=WAITING),
    queue("queue_batch", f"queue_send@{BATCH} queue_hundred@1", backlog=WAITING),
    ledger("batch", f"register@{BATCH} hundred@1", units=CONFIRMED, backlog=WAITING),
    drain(floor, "F6_drain", "f6_hundred", units=SETTLED),
    drain(queue, "queue_drain", "queue_hundred"),
    drain(ledger, "drain", "hundred", units=CONFIRMED),
]
# The SQL of pgmq, where somebody has it: not part of this.
PGMQ = os.environ.get("BENCH_PGMQ")
if PGMQ:
    ALWAYS += [
        pgmq("pgmq_cycle", "pgmq_cycle", backlog=WAITING),
        pgmq("pgmq_batch", f"pgmq_send@{BATCH} pgmq_hundred@1", backlog=WAITING),
        drain(pgmq, "pgmq_drain", "pgmq_hundred"),
    ]
# Beside the plain register of the same round: what else a registration can carry.
MORE = [
    floor("F2", "f2"),
    floor("F4_grows", "f4_grows"),
    ledger("register_grows", "register_grows"),
    ledger("register_approved", "register_approved"),
    ledger("register_inside", "register_inside"),
    ledger("register_types", "register_types"),
    ledger("register_granted", "register", options="-c role=bench_agent"),
    ledger("register_tenants", "register_tenants", options="-c role=bench_many"),
    queue("queue_cycle", "queue_cycle", backlog=WAITING),
]


def main():
    server = Server()
    server.create("floors.sql", "ledger.sql")
    if PGMQ:
        server.file(os.path.abspath(PGMQ))
        server.sql("SELECT pgmq.create('bench')")
    server.file("keep.sql", params=PARAMS, waiting=DRAIN)
    budget = Budget(setting("PATIENCE", 10, 150))
    clients = [int(x) for x in setting("CLIENTS", "1 4", "1 4 16").split()]
    rounds, base = setting("ROUNDS", 1, 3), setting("BASE", 10_000, 10_000)
    turns(ALWAYS, server, clients, rounds, base, budget)
    # Ratios to the plain register, which therefore runs among them again.
    plain = [cell for cell in ALWAYS if cell.name == "register"]
    for cell in plain:
        cell.name = "register_plain"
    few = [clients[0]] if QUICK else sorted({clients[0], clients[-1]})
    turns(MORE + plain, server, few, setting("MORE_ROUNDS", 1, 2), base, budget)


if __name__ == "__main__":
    main()

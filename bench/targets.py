"""What is to be reached: ratios of medians within one run, at 1, 4 and 16 clients, each (must, aim)."""

CLIENTS = (1, 4, 16)

# title, ours, floor, must, aim
RATIOS = [
    ("register", "register", "F4", (0.95, 0.95, 0.90), (1.05, 1.05, 1.10)),
    ("register, keys that grow", "register_grows", "F4_grows", (0.95, 0.95, 0.90), (1.05, 1.05, 1.10)),
    ("replay of a settled command", "replay", "F5", (0.90, 0.70, 0.65), (0.97, 0.90, 0.85)),
    ("register, claim 1, confirm: three commits", "cycle", "F6", (1.25, 1.5, 1.5), (1.5, 1.8, 2.2)),
    ("register one by one, claim and confirm in hundreds", "batch", "F6_batch", (1.0,) * 3, (1.2,) * 3),
    ("the same", "batch", "queue_batch", (1.0,) * 3, (1.2,) * 3),
    ("the same", "batch", "pgmq_batch", (1.0,) * 3, (1.2,) * 3),
    ("drain of a backlog in hundreds", "drain", "queue_drain", (0.9,) * 3, (1.3,) * 3),
    ("the same", "drain", "pgmq_drain", (0.9,) * 3, (1.3,) * 3),
    ("register with an approval to be given", "register_approved", "register_plain", (0.7,) * 3, (0.9,) * 3),
    ("register for a function destination", "register_inside", "register_plain", (0.7,) * 3, (0.9,) * 3),
    ("register over 50 types", "register_types", "register_plain", (0.7,) * 3, (0.9,) * 3),
    ("register as a role with one grant", "register_granted", "register_plain", (0.7,) * 3, (0.9,) * 3),
    ("register over 1,000 tenants, each granted", "register_tenants", "register_plain", (0.7,) * 3, (0.9,) * 3),
]
# Shown without a mark: nothing is asked of them.
COMPARED = [
    ("register", "register", "F3"),
    ("cycle", "cycle", "F6_one"),
    ("cycle", "cycle", "queue_cycle"),
    ("cycle", "cycle", "pgmq_cycle"),
    ("drain", "drain", "F6_drain"),
]
# title, cell, field, must, aim: at most
BYTES = [
    ("register, WAL bytes", "register", "wal_b", 1_150, 850),
    ("register, keys that grow, WAL bytes", "register_grows", "wal_b", 1_150, 850),
    ("register, keys that grow, full-page images", "register_grows", "fpi", 0.01, 0.01),
    ("replay, WAL bytes", "replay", "wal_b", 0.5, 0.0),
    ("replay, transaction ids", "replay", "xids", 0.001, 0.0),
    ("cycle, WAL bytes", "cycle", "wal_b", 1_900, 1_500),
]
# cell, must, aim: rate over many commands against the rate over few
GROWTH = [("register", 0.90, 0.97), ("register_grows", 0.90, 0.97), ("replay", 0.75, 0.85), ("claim", 0.95, 1.0)]
# what, must, aim at 1, 4, 16 callers against agent-ledger
AGENT = [("run", (1.5, 1.5, 1.6), (1.7, 1.7, 1.9)), ("replay", (4.0,) * 3, (4.5,) * 3)]
# pg_net at batches of 2,000 on the machine of the first figures: it is not in the run, so this one is no ratio of a run.
RELAY_PER_S = (1.3 * 1_873, 4 * 1_873)
LATENCY_MS = {"p50_ms": (5.0, 2.0), "p99_ms": (None, 15.0)}
DISK_RATIO = (1.25, 1.0)
SNAPSHOT_FACTOR = (5.0, 1.5)
SNAPSHOT_P99_MS = 2.0
# The relay above a plain session, a session from its first tenth of registers to its last.
RELAY_ABOVE_KB = 60 * 1024
SESSION_GROWTH = 1.05


def mark(value, must, aim, at_most=False):
    """'aim', 'must' or 'MISSED'."""
    if value is None:
        return ""
    reached = (lambda limit: value <= limit) if at_most else (lambda limit: value >= limit)
    if aim is not None and reached(aim):
        return "aim"
    return "must" if must is not None and reached(must) else "MISSED"

"""A claim's time while the queue turns over at a steady rate and another transaction keeps an old snapshot.

Mean: of all claims in a window, inside the server (track_functions, so without the flush of the commit). Spread: of a
sampling session that claims and confirms beside the others, its commit and round trip included.
"""

import os
import subprocess
import tempfile
import time
import uuid

import psycopg

from measure import ANSWER, HERE, PARAMS, Budget, Server, percentile, record, say, setting, wait_until_quiet

HOLD_S = int(os.environ.get("HOLD", setting("HOLD", 15, 120)))
RATE = int(os.environ.get("RATE", setting("RATE", 300, 500)))
BEFORE_S, AFTER_S, WINDOW_S = setting("BEFORE", 10, 20), setting("AFTER", 5, 10), setting("WINDOW", 5, 10)
SAMPLES_PER_S = 40


def start_load(server, seconds, folder):
    command = [os.path.join(server.bin, "pgbench"), "-n", "-M", "prepared", "-c", "4", "-j", "1", "-R", str(RATE),
               "-T", str(seconds), "-D", f"params={PARAMS}", "-D", f"answer={ANSWER}",
               "-f", os.path.join(HERE, "pgbench", "cycle.sql")]  # fmt: skip
    environment = {**server.environment, "PGOPTIONS": "-c track_functions=all"}
    with open(os.path.join(folder, "out"), "w", encoding="utf-8") as out:
        return subprocess.Popen(command, cwd=folder, env=environment, stdout=out, stderr=subprocess.STDOUT)


class Windows:
    """What all claims did since the window before."""

    SQL = """SELECT coalesce(sum(calls), 0)::float8, coalesce(sum(total_time), 0)::float8 FROM pg_stat_user_functions
              WHERE schemaname = 'command_ledger' AND funcname = 'claim'"""
    DEAD = """SELECT n_dead_tup, pg_total_relation_size(relid) / 1024 FROM pg_stat_user_tables
               WHERE schemaname = 'command_ledger' AND relname = 'outbox'"""

    def __init__(self, session):
        self.session, self.at, self.samples = session, time.monotonic(), []
        self.calls, self.total = session.execute(self.SQL).fetchone()

    def take(self):
        """Closes the window and begins the next one."""
        now = time.monotonic()
        calls, total = self.session.execute(self.SQL).fetchone()
        dead, size = self.session.execute(self.DEAD).fetchone()
        done, seconds = calls - self.calls, now - self.at
        ordered, self.samples = sorted(self.samples), []
        mean = (total - self.total) / done if done else None
        self.calls, self.total, self.at = calls, total, now
        return {
            "claims_per_s": round(done / seconds, 1), "claim_mean_ms": round(mean, 4) if mean else None,
            "sampled": len(ordered), "p50_ms": percentile(ordered, 0.5), "p99_ms": percentile(ordered, 0.99),
            "dead_rows": dead, "outbox_kb": size,
        }  # fmt: skip


def sample(session, windows):
    """One claim, timed; a registration before it and its confirmation, so that the backlog stays as it is."""
    session.execute("SELECT command_ledger.register('pay', %s, %s)", (str(uuid.uuid4()), PARAMS), prepare=True)
    started = time.monotonic()
    row = session.execute(
        "SELECT idempotency_key, lease_token FROM command_ledger.claim('desk')", prepare=True).fetchone()
    windows.samples.append(round((time.monotonic() - started) * 1e3, 3))
    if row:
        session.execute("SELECT command_ledger.confirm(%s, %s, 'r')", row, prepare=True)


def main():
    server = Server("bench_snapshot")
    server.create("ledger.sql")
    server.file("keep.sql", params=PARAMS, waiting=200)
    server.file("reset_ledger.sql", base=10_000, backlog=200, params=PARAMS)
    server.sql("CHECKPOINT")
    wait_until_quiet(Budget(setting("PATIENCE", 3, 20)))
    total = BEFORE_S + HOLD_S + AFTER_S
    with tempfile.TemporaryDirectory(prefix="snapshot-") as folder:
        load = start_load(server, total + 5, folder)
        try:
            with psycopg.connect(server.dsn(), autocommit=True) as session, psycopg.connect(server.dsn()) as holder:
                watch(session, holder, total)
        finally:
            load.terminate()
            load.wait()


def watch(session, holder, total):
    time.sleep(1)  # until the sessions are connected and have their plans
    windows, started, held = Windows(session), time.monotonic(), False
    while (at := time.monotonic() - started) < total:
        sample(session, windows)
        if time.monotonic() - windows.at >= WINDOW_S:
            row = {"at_s": round(at), "held": held, **windows.take()}
            record("snapshot", rate=RATE, hold_s=HOLD_S, **row)
            say(f"   {row['at_s']:4} s {'held' if held else '    '}  {row['claims_per_s']:6} claims/s  mean {row['claim_mean_ms']} ms"
                f"  sampled p99 {row['p99_ms']} ms  {row['dead_rows']} dead rows, {row['outbox_kb']} kB")
        if not held and BEFORE_S <= at < BEFORE_S + HOLD_S:
            holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            holder.execute("SELECT count(*) FROM pg_class")
            held = True
        elif held and at >= BEFORE_S + HOLD_S:
            holder.rollback()
            held = False
        time.sleep(max(0.0, 1 / SAMPLES_PER_S - (time.monotonic() - windows.at) % (1 / SAMPLES_PER_S)))


if __name__ == "__main__":
    main()

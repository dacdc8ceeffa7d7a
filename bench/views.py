"""Each view's documented query over many finished commands: how long it takes, and by which plan."""

import os
import re
import sys
import time

from measure import FULL, PARAMS, Server, record, say, setting

OPEN = setting("OPEN", 500, 1_000)
# Grow with the commands by design: for an audit or a report, not for a dashboard.
REPORTS = {
    "duplicate_records": "an audit: reads all commands",
    "lookalikes": "an audit: reads the index of all commands with such a window",
    "measures": "a report: reads all commands of runs",
}


def many():
    if len(sys.argv) > 1:
        return int(sys.argv[1].replace("_", "").replace(",", ""))
    return 10_000_000 if FULL else setting("MANY", 100_000, 1_000_000)


def documented():
    """The example query of each view, from the reference that the catalog's comments make."""
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    with open(os.path.join(root, "docs", "reference.md"), encoding="utf-8") as file:
        views = file.read().split("\n## Views\n")[1].split("\n## ")[0]
    for section in views.split("\n### ")[1:]:
        name = section.split("\n")[0].strip()
        query = re.search(r"```sql\n(.*?)```", section, re.S)
        if query:
            # One command that is there, and one run.
            text = query.group(1).strip().rstrip(";")
            text = re.sub(r"idempotency_key = '[^']*'", "idempotency_key = 'asked-7'", text)
            yield name, re.sub(r"run_id = '[^']*'", "run_id = 'run-7'", text)


def explain(server, query):
    """Milliseconds in the server and the plan, of the second of two executions."""
    statement = f"EXPLAIN (ANALYZE, TIMING OFF, COSTS OFF) {query}"
    server.psql("-c", "SET ROLE bench_auditor", "-c", statement)
    plan = server.psql("-c", "SET ROLE bench_auditor", "-c", statement).split("\n")
    found = [float(line.split()[2]) for line in plan if line.startswith(("Planning Time", "Execution Time"))]
    rows = re.search(r"rows=(\d+)", plan[0])
    return sum(found), int(rows.group(1)) if rows else 0, plan


def prepare(commands):
    server = Server("bench_views")
    server.create("ledger.sql")
    server.file("keep.sql", params=PARAMS, waiting=10)
    started = time.monotonic()
    server.sql("DO $$ BEGIN IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'bench_auditor') THEN CREATE ROLE bench_auditor; END IF; END $$",
               "SET max_parallel_workers_per_gather = 0", f"SELECT bench.load_finished({commands})")  # fmt: skip
    server.file("in_runs.sql")
    server.file("open_work.sql", params=PARAMS, open=OPEN)
    say(f"   {commands:,} finished commands and some open ones in {time.monotonic() - started:.0f} s")
    return server


def main():
    commands = many()
    server = prepare(commands)
    for name, query in documented():
        ms, rows, plan = explain(server, query)
        record("view", name=name, commands=commands, open=OPEN, ms=round(ms, 1), rows=rows, query=query, plan=plan, report=REPORTS.get(name))
        say(f"   {name:<24}{ms:>10.1f} ms  {rows:>8} rows")
    server.on("postgres").sql("DROP DATABASE bench_views")


if __name__ == "__main__":
    main()

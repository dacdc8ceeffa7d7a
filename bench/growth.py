"""The same cells over few and over many finished commands, turn by turn; and what a settled command takes on disk."""

import os
import subprocess
import sys
import tempfile
import time

from cells import CONFIRMED
from measure import FULL, PARAMS, QUICK, Budget, Cell, Server, memory_kb, record, say, setting

FEW = 10_000
WAITING = setting("CLAIMS", 1_500, 6_000)


def many():
    if len(sys.argv) > 1:
        return int(sys.argv[1].replace("_", "").replace(",", ""))
    return 10_000_000 if FULL else setting("MANY", 100_000, 1_000_000)


def bytes_per_command(server, schema, commands):
    """Heap and indexes of the tables that hold a settled command."""
    heap, index = server.sql(
        "SELECT sum(pg_table_size(c.oid)) || ' ' || sum(pg_indexes_size(c.oid)) FROM pg_class c "
        "JOIN pg_namespace n ON n.oid = c.relnamespace "
        f"WHERE n.nspname = '{schema}' AND c.relname IN ('command', 'event', 'command_event')").split()
    return float(heap) / commands, float(index) / commands


def prepare(commands):
    """A database with this many finished commands, in the ledger and in the floors."""
    server = Server(f"bench_{commands}")
    server.create("floors.sql", "ledger.sql")
    server.file("keep.sql", params=PARAMS, waiting=WAITING)
    started = time.monotonic()
    server.sql("SET max_parallel_workers_per_gather = 0", f"SELECT bench.load_finished({commands})",
               "VACUUM (FREEZE, ANALYZE) command_ledger.command", "VACUUM (FREEZE, ANALYZE) command_ledger.command_event")
    ledger_s = time.monotonic() - started
    server.file("load_floors.sql", base=commands, backlog=0, params=PARAMS)
    say(f"   {commands:,} finished commands loaded in {ledger_s:.0f} s")
    return server


def disk(server):
    """What really lived: registered, claimed and confirmed in hundreds, then vacuumed."""
    commands = setting("LIVED", 4_000, 20_000)
    server.file("load_floors.sql", base=1, backlog=commands, params=PARAMS)
    server.sql("SELECT bench.empty()", f"SELECT count(command_ledger.register('pay', (i * 7368787)::text, $${PARAMS}$$)) "
               f"FROM generate_series(1::bigint, {commands}) i")
    sizes = {}
    for schema, script in (("floors", "f6_hundred"), ("command_ledger", "hundred")):
        with tempfile.TemporaryDirectory(prefix="disk-") as folder:
            Cell(script, script, amount=commands // 100 + 1).load(server, 1, 1, folder)
        tables = ("command", "event") if schema == "floors" else ("command", "command_event")
        server.sql(*(f"VACUUM {schema}.{table}" for table in tables))
        heap, index = bytes_per_command(server, schema, commands)
        sizes[schema] = heap + index
        record("disk", schema=schema, commands=commands, heap_b=round(heap, 1), index_b=round(index, 1))
    say(f"   bytes on disk of a settled command: {sizes['command_ledger']:.0f}; in F6's tables {sizes['floors']:.0f}")


# Takes what the claim's cell has claimed away, and puts new ones.
SETUP = f"""
CREATE OR REPLACE FUNCTION bench.waiting_again() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    SET LOCAL session_replication_role = replica;
    TRUNCATE command_ledger.outbox;
    DELETE FROM command_ledger.command c USING bench.waiting_command w
     WHERE c.tenant = w.tenant AND c.idempotency_key = w.idempotency_key;
    DELETE FROM command_ledger.command_event e USING bench.waiting_command w
     WHERE e.tenant = w.tenant AND e.idempotency_key = w.idempotency_key;
    PERFORM bench.restore_waiting({WAITING});
END $$"""

CELLS = [
    Cell("register", "register", schema="command_ledger"),
    Cell("register_grows", "register_grows", schema="command_ledger"),
    Cell("replay", "replay", schema="command_ledger", sample=0.2),
    Cell("F4", "f4"),
    Cell("F5", "f5", sample=0.2),
    Cell("claim", "claim", schema="command_ledger", units=CONFIRMED, amount=WAITING * 4 // 5),
]


def compare(servers):
    budget = Budget(setting("PATIENCE", 5, 40))
    clients = [int(x) for x in setting("GROWTH_CLIENTS", "4", "1 4").split()]
    for turn in range(setting("GROWTH_ROUNDS", 1, 2)):
        for count in clients:
            for cell in CELLS:
                for commands, server in sorted(servers.items(), reverse=bool(turn % 2)):
                    if commands == FEW:
                        # The small one stays small; beside the many, what the cells add does not matter.
                        server.file("load_floors.sql" if cell.schema == "floors" else "reset_ledger.sql",
                                    base=FEW, backlog=0, params=PARAMS)  # fmt: skip
                    if cell.name == "claim":
                        server.sql("SELECT bench.waiting_again()")
                    cell.run(server, count, turn + 1, commands, budget, f"@{commands}")


def session_memory(server):
    """The memory of one session before and after many registers."""
    registers, steps = setting("SESSION_REGISTERS", 20_000, 200_000), 10
    command = [os.path.join(server.bin, "psql"), "-XAtq"]
    session = subprocess.Popen(command, env=server.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(statement):
        session.stdin.write(statement + ";\n")
        session.stdin.flush()
        return session.stdout.readline().strip()

    pid = int(ask("SELECT pg_backend_pid()"))
    # Not what is shared: pages of shared_buffers count in a session's RSS once it has touched them.
    ask("SET synchronous_commit = off; SELECT 1")
    series = []
    for step in range(steps):
        # One call per statement, as applications do: a file of them goes through psql, and one answer comes back.
        first = step * registers // steps
        for i in range(first, first + registers // steps):
            session.stdin.write(f"SELECT command_ledger.register('pay', 'memory-{i:08}', '{PARAMS}') \\g /dev/null\n")
        series.append((first + registers // steps, memory_kb(pid) if ask("SELECT 1") else 0))
    session.stdin.close()
    session.wait()
    record("session_memory", registers=registers, series_kb=series)
    say(f"   one session over {registers:,} registers: {series[0][1]:,} kB after a tenth, {series[-1][1]:,} kB at the end")


def main():
    large = many()
    servers = {}
    for commands in (FEW, large):
        servers[commands] = prepare(commands)
        servers[commands].sql(SETUP)
    compare(servers)
    disk(servers[FEW])
    session_memory(servers[FEW])
    if not QUICK:
        # Room for what comes after.
        servers[large].on("postgres").sql(f"DROP DATABASE bench_{large}")


if __name__ == "__main__":
    main()

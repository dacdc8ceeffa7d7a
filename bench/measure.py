"""One server, measured: SQL through psql, load through pgbench, and who used the processor meanwhile.

A record is one JSON object per line of $BENCH_RECORDS; report.py reads nothing else.
"""

import glob
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
QUICK = bool(os.environ.get("QUICK"))
FULL = bool(os.environ.get("FULL"))
TICKS = os.sysconf("SC_CLK_TCK")
# Ten fields, about 200 bytes: what a tool call of an agent looks like.
PARAMS = json.dumps(
    {"tool": "payment.capture", "account": "acct_0123456789abcdef", "amount": 12500, "currency": "EUR",
     "note": "second instalment", "agent": "billing-7", "trace": "4bf92f3577b34da6a3ce929d0e", "plant": "P100",
     "urgent": False, "lines": [1, 2]}, separators=(",", ":"))  # fmt: skip
ANSWER = '{"ok":true,"receipt":"rcpt_0123456789"}'
# Others may take this share of the machine during a cell; beyond it the cell is noisy and repeated.
OTHERS_MAX_PCT = float(os.environ.get("BENCH_OTHERS_MAX", 12))
REPEATS = 2


def setting(name, quick, usual):
    """A number that the environment may replace (BENCH_NAME)."""
    return type(usual)(os.environ.get("BENCH_" + name, quick if QUICK else usual))


def record(part, **fields):
    """Appends a record and shows it."""
    with open(os.environ["BENCH_RECORDS"], "a", encoding="utf-8") as out:
        out.write(json.dumps({"part": part, "at": int(time.time()), **fields}) + "\n")


def say(text):
    print(text, flush=True)


class Budget:
    """Seconds that may be spent on waiting for a quiet machine and on repeating noisy cells, over a whole part."""

    def __init__(self, seconds):
        self.left = seconds

    def spend(self, seconds):
        self.left -= seconds

    def is_there(self):
        return self.left > 0


class Server:
    """The bench's server, seen by its clients."""

    def __init__(self, database="bench"):
        self.bin = os.environ["BENCH_BIN"]
        self.data = os.path.join(os.environ["BENCH_DIR"], "data")
        self.database = database
        self.environment = {
            **os.environ, "PGHOST": "127.0.0.1", "PGPORT": os.environ["BENCH_PORT"], "PGUSER": "postgres",
            "PGDATABASE": database, "PGCONNECT_TIMEOUT": "10", "PGOPTIONS": "-c client_min_messages=warning",
        }  # fmt: skip

    def on(self, database):
        return Server(database)

    def dsn(self):
        return f"host=127.0.0.1 port={os.environ['BENCH_PORT']} user=postgres dbname={self.database}"

    def psql(self, *arguments, **variables):
        command = [os.path.join(self.bin, "psql"), "-XAtq", "-v", "ON_ERROR_STOP=1"]
        for name, value in variables.items():
            command += ["-v", f"{name}={value}"]
        done = subprocess.run([*command, *arguments], env=self.environment, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"error: psql {' '.join(arguments)[:300]}: {done.stderr.strip()[:2000]}")
        return done.stdout.strip()

    def sql(self, *statements, **variables):
        """Runs the statements, each in a transaction of its own; the answer is the last one's."""
        return self.psql(*[part for one in statements for part in ("-c", one)], **variables).split("\n")[-1]

    def number(self, statement):
        return float(self.sql(statement) or 0)

    def file(self, name, **variables):
        return self.psql("-f", os.path.join(HERE, "sql", name), **variables)

    def create(self, *files, **variables):
        """A new database with these files run in it."""
        system = self.on("postgres")
        system.sql(f"DROP DATABASE IF EXISTS {self.database}", f"CREATE DATABASE {self.database}")
        for name in files:
            self.file(name, **variables)

    def exists(self):
        return self.on("postgres").sql(f"SELECT 1 FROM pg_database WHERE datname = '{self.database}'") == "1"

    def postmaster(self):
        with open(os.path.join(self.data, "postmaster.pid"), encoding="utf-8") as file:
            return int(file.readline())

    def relay_pid(self):
        pid = self.sql(
            "SELECT pid FROM pg_stat_activity WHERE backend_type = 'command_ledger relay' AND datname = current_database()")
        return int(pid) if pid else None

    def wait_for_relay(self, seconds=30):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if pid := self.relay_pid():
                return pid
            time.sleep(0.05)
        sys.exit("error: no relay runs: SELECT * FROM command_ledger.health() says why")

    def cpu_seconds(self):
        """What the server has used: the postmaster with its ended children, and the living ones."""
        master = self.postmaster()
        total = sum(cpu_times(master))
        for child in children(master):
            total += sum(cpu_times(child)[:2])
        return total


def cpu_times(pid):
    """user, system, and both of the children that were waited for, in seconds."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            fields = file.read().rpartition(")")[2].split()
        return [int(x) / TICKS for x in fields[11:15]]
    except OSError:
        return [0, 0, 0, 0]


def children(pid):
    try:
        with open(f"/proc/{pid}/task/{pid}/children", encoding="utf-8") as file:
            return [int(x) for x in file.read().split()]
    except OSError:
        return []


def memory_kb(pid, name="RssAnon"):
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8") as file:
            return next(int(line.split()[1]) for line in file if line.startswith(name + ":"))
    except (OSError, StopIteration):
        return 0


class Machine:
    """The whole machine's processors since a moment; busy includes steal."""

    @staticmethod
    def read():
        with open("/proc/stat", encoding="utf-8") as file:
            user, nice, system, idle, iowait, irq, softirq, steal = map(int, file.readline().split()[1:9])
        return user + nice + system + irq + softirq + steal, idle + iowait, steal

    def __init__(self):
        self.before = self.read()

    def since(self):
        """Seconds busy, seconds in all."""
        busy, idle, _ = (b - a for a, b in zip(self.before, self.read()))
        return busy / TICKS, (busy + idle) / TICKS


def wait_until_quiet(budget, limit_pct=25):
    """Waits, within the budget, until the machine is less busy than this; answers how busy it was."""
    while True:
        machine = Machine()
        time.sleep(0.3)
        busy, total = machine.since()
        pct = 100 * busy / total if total else 0
        if pct <= limit_pct or not budget.is_there():
            return pct
        budget.spend(1.5)
        time.sleep(1.2)


def percentile(ordered, share):
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None


class Cell:
    """One candidate, measured once: `scripts` are files of pgbench/ with '@weight'; `reset` is a file of sql/.

    Units are transactions of the first script, or what `units` counts; `amount` makes it a fixed piece of work
    (transactions of each client) instead of some seconds.
    """

    def __init__(self, name, scripts, reset=None, schema="floors", units=None, options="", amount=None, backlog=0,
                 sample=1.0, seconds=None):  # fmt: skip
        self.name, self.scripts, self.reset, self.schema = name, scripts.split(), reset, schema
        self.units, self.options, self.amount, self.backlog = units, options, amount, backlog
        self.sample, self.seconds = sample, seconds

    def sizes(self, server):
        return [float(x) for x in server.sql(
            "SELECT coalesce(sum(pg_table_size(c.oid)), 0) || ' ' || coalesce(sum(pg_indexes_size(c.oid)), 0) "
            "FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
            f"WHERE n.nspname = '{self.schema}' AND c.relkind = 'r'").split()]  # fmt: skip

    def run(self, server, clients, turn, base, budget, label=""):
        """Measures, again while others disturb it, and records the last one."""
        for attempt in range(1 + REPEATS):
            started = time.monotonic()
            result = self.once(server, clients, base, budget)
            result["noisy"] = result["others_pct"] > OTHERS_MAX_PCT
            if attempt:
                budget.spend(time.monotonic() - started)
            if not result["noisy"] or not budget.is_there():
                break
        record("cell", name=self.name + label, clients=clients, turn=turn, base=base, **result)
        say(f"   {self.name + label:24} {clients:3} clients {result['units_per_s']:10,.0f}/s  p50 {result['p50_us'] or 0:6} us"
            f"  WAL {result['wal_b']:6,.0f} B  others {result['others_pct']:3.0f} %{'  noisy' if result['noisy'] else ''}")
        return result

    def once(self, server, clients, base, budget):
        if self.reset:
            server.file(self.reset, base=base, backlog=self.backlog, params=PARAMS)
        server.sql("CHECKPOINT")
        busy_before = wait_until_quiet(budget)
        sizes, units = self.sizes(server), server.number(self.units) if self.units else 0
        state = "SELECT wal_fpi || ' ' || wal_sync || ' ' || pg_snapshot_xmax(pg_current_snapshot()) FROM pg_stat_wal"
        before = [float(x) for x in server.sql(state).split()]
        lsn = server.sql("SELECT pg_current_wal_insert_lsn()")
        with tempfile.TemporaryDirectory(prefix="cell-") as folder:
            own = server.cpu_seconds() + sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
            machine, started = Machine(), time.monotonic()
            done, errors = self.load(server, clients, base, folder)
            wall = time.monotonic() - started
            busy, total = machine.since()
            time.sleep(0.15)  # until the server has taken leave of its sessions
            own = server.cpu_seconds() + sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2]) - own
            latencies = sorted(self.latencies(folder))
        wal = server.number(f"SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '{lsn}')")
        after = [float(x) for x in server.sql(state).split()]
        if self.units:
            done["count"] = server.number(self.units) - units
        count = max(done["count"], 1)
        heap, index = (b - a for a, b in zip(sizes, self.sizes(server)))
        fpi, syncs, xids = (b - a for a, b in zip(before, after))
        return {
            "units": done["count"], "seconds": round(done["seconds"], 3), "wall": round(wall, 2), "errors": errors,
            "units_per_s": round(done["count"] / done["seconds"], 1),
            "p50_us": percentile(latencies, 0.5), "p95_us": percentile(latencies, 0.95),
            "p99_us": percentile(latencies, 0.99), "wal_b": round(wal / count, 2), "fpi": round(fpi / count, 4),
            "syncs": round(syncs / count, 4), "xids": round(xids / count, 4), "heap_b": round(heap / count, 1),
            "index_b": round(index / count, 1), "busy_pct": round(100 * busy / total, 1),
            "cpu_us": round(1e6 * own / count, 1), "busy_before_pct": round(busy_before, 1),
            "others_pct": round(100 * max(0.0, busy - own) / total, 1),
        }  # fmt: skip

    def load(self, server, clients, base, folder):
        command = [os.path.join(server.bin, "pgbench"), "-n", "-M", "prepared", "-c", str(clients),
                   "-j", "2" if clients >= 8 else "1", "-D", f"params={PARAMS}", "-D", f"answer={ANSWER}",
                   "-D", f"base={base}", "-D", f"step={9223372036854775806 // max(base, 1)}",
                   "-l", f"--sampling-rate={self.sample}", "--log-prefix=l"]  # fmt: skip
        if self.amount:
            command += ["-t", str(max(1, self.amount // clients))]
        else:
            command += ["-T", str(self.seconds or setting("SECONDS", 1, 3))]
        for script in self.scripts:
            name, _, weight = script.partition("@")
            command += ["-f", os.path.join(HERE, "pgbench", name + ".sql") + (f"@{weight}" if weight else "")]
        environment = {**server.environment, "PGOPTIONS": self.options}
        run = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        count = re.search(r"transactions actually processed: (\d+)", run.stdout)
        rate = re.search(r"tps = ([0-9.]+) \(without", run.stdout)
        trouble = [line for line in run.stderr.splitlines() if re.search("error|abort", line, re.I)]
        if not count or not rate or float(rate.group(1)) == 0:
            sys.exit(f"error: {self.name} with {clients} clients did nothing: {run.stderr.strip()[:2000]}")
        if trouble:
            say(f"   {self.name}: {trouble[0][:200]}")
        return {"count": int(count.group(1)), "seconds": int(count.group(1)) / float(rate.group(1))}, len(trouble)

    @staticmethod
    def latencies(folder):
        """Of the first script, in microseconds."""
        for path in glob.glob(os.path.join(folder, "l.*")):
            with open(path, encoding="utf-8") as file:
                for line in file:
                    fields = line.split()
                    if fields[3] == "0":
                        yield int(fields[2])


def turns(cells, server, clients, rounds, base, budget, label=""):
    """Rounds of cells, interleaved; each round begins with another one."""
    for turn in range(rounds):
        for count in clients:
            for place in range(len(cells)):
                cells[(place + turn) % len(cells)].run(server, count, turn + 1, base, budget, label)


def which(program):
    return shutil.which(program, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")

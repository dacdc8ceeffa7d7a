"""Writes RESULTS/DATE.md and its pictures from the records of one run.  report.py RESULTS [SECONDS]"""

import json
import os
import statistics
import sys
import time

import targets
from pictures import draw
from targets import CLIENTS, mark


def median(values):
    values = [v for v in values if v is not None]
    return statistics.median(values) if values else None


def figure(value):
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def views(run):
    found = run.of("view")
    if not found:
        return []
    first = found[0]
    lines = ["## Views", "",
             f"The documented query of each view, planning included, over {first['commands']:,} finished commands and "
             f"{first['open']:,} of each kind of open ones, as a role with audit and operate. A tenth of the finished ones are in "
             "runs of ten and of a type with a look-alike window.", "",
             *table(["view", "ms", "rows"], [[r["name"] + (f" ({r['report']})" if r["report"] else ""),
                                              figure(r["ms"]), f"{r['rows']:,}"] for r in found])]  # fmt: skip
    for r in found:
        lines += [f"<details><summary>{r['name']}: plan</summary>", "", "```", r["query"] + ";", "", *r["plan"], "```", "", "</details>", ""]
    return lines


class Run:
    """The records of a run, by part."""

    def __init__(self, path):
        with open(path, encoding="utf-8") as file:
            self.all = [json.loads(line) for line in file]

    def of(self, part, **where):
        return [r for r in self.all if r["part"] == part and all(r.get(k) == v for k, v in where.items())]

    def cells(self, name, clients=None):
        """Quiet ones where there are any."""
        some = self.of("cell", name=name, **({} if clients is None else {"clients": clients}))
        return [r for r in some if not r["noisy"]] or some

    def rate(self, name, clients):
        return median([r["units_per_s"] for r in self.cells(name, clients)])

    def field(self, name, field):
        return median([r[field] for r in self.cells(name)])

    def names(self):
        return [name for name in dict.fromkeys(r["name"] for r in self.of("cell")) if "@" not in name]


def table(head, rows):
    return ["| " + " | ".join(head) + " |", "|" + "---|" * len(head), *("| " + " | ".join(row) + " |" for row in rows), ""]


def ratio(ours, floor):
    return ours / floor if ours and floor else None


def judged(value, must, aim, at_most=False, shown=None):
    if value is None:
        return "–"
    return f"{shown or figure(value)} {mark(value, must, aim, at_most)}"


def triple(values):
    values = [f"{v:g}" for v in values]
    return values[0] if len(set(values)) == 1 else ", ".join(values)


def machine(run):
    found = run.of("machine")
    if not found:
        return []
    m = found[-1]
    kind = "QUICK (a look, not a measurement)" if m["quick"] else "full"
    noisy, cells = len(run.of("cell", noisy=True)), len(run.of("cell"))
    return [
        f"- {m['processors']} processors ({m['processor']}), {m['memory_gb']} GB, {m['system']}, Linux {m['kernel']}; "
        f"one flush (fdatasync) takes {m['flush_us'] or '?'} us",
        f"- {m['server'].split(' on ')[0]}, command_ledger at {m['commit']}{' with changes' if m['changed'] else ''}, {m['rustc']}",
        f"- {kind} run; {cells} cells, in {noisy} of them others took more than their share of the processors to the end",
        "",
    ]  # fmt: skip


def ratios(run):
    rows = []
    for title, ours, floor, must, aim in targets.RATIOS:
        found = [ratio(run.rate(ours, n), run.rate(floor, n)) for n in CLIENTS]
        if any(found):
            cells = [judged(r, m, a) for r, m, a in zip(found, must, aim)]
            rows.append([title, floor, *cells, triple(must), triple(aim)])
    for title, ours, floor in targets.COMPARED:
        found = [ratio(run.rate(ours, n), run.rate(floor, n)) for n in CLIENTS]
        if any(found):
            rows.append([title, floor, *map(figure, found), "", ""])
    if not rows:
        return []
    head = ["what", "against", *(f"{n} client{'s' if n > 1 else ''}" for n in CLIENTS), "must", "aim"]
    return ["## Ratios to the floors", "", *table(head, rows)]


def at_most(run):
    rows = []
    for title, name, field, must, aim in targets.BYTES:
        value = run.field(name, field)
        if value is not None:
            rows.append([title, judged(value, must, aim, True), f"{must:g}", f"{aim:g}"])
    return ["## Bytes and transaction ids per unit, at most", "", *table(["what", "measured", "must", "aim"], rows)] if rows else []


def relay(run):
    rows, lines = [], []
    for r in run.of("relay"):
        title = {"clean": "clean sink", "unlucky": "1 % of the connections reset"}[r["name"]]
        if r["killed"]:
            title += f", server killed -9 at {r['killed_at_s']} s"
        honest = r["keys_seen_more_than_attempted"] == 0 and (r["killed"] or r["requests"] == r["attempts"])
        if r["name"] == "clean":
            honest = honest and r["requests"] == r["commands"]
        speed = judged(r["per_s"], *targets.RELAY_PER_S) if r["name"] == "clean" else figure(r["per_s"])
        rows.append([title, speed, f"{r['confirmed']:,} of {r['commands']:,}", f"{r['requests']:,}", f"{r['attempts']:,}",
                     str(r["attempts_never_seen"]), str(r["resets"]), "yes" if honest else "NO"])  # fmt: skip
    if rows:
        first = run.of("relay")[0]
        lines += ["## Relay", "",
                  f"From resume() until {first['commands']:,} commands are settled; in_flight {first['in_flight']}, relay_batch "
                  f"{first['batch']}. Must and aim are {targets.RELAY_PER_S[0]:,.0f} and {targets.RELAY_PER_S[1]:,.0f} per second "
                  "on the machine of the first figures. Honest: no key was seen more often than the ledger recorded attempts; "
                  "on a clean sink each once; without a kill the sums are equal.", "",
                  *table(["sink", "per second", "confirmed", "requests seen", "attempts recorded", "attempts never seen",
                          "resets", "honest"], rows)]  # fmt: skip
    for r in run.of("relay_memory"):
        above = r["relay_anon_kb"] - r["plain_anon_kb"]
        lines.append(f"- the relay's own memory after these: {r['relay_anon_kb']:,} kB, {above:,} kB above a plain session: "
                     f"{mark(above, targets.RELAY_ABOVE_KB, None, True)} (60 MB)")  # fmt: skip
    for r in run.of("latency"):
        f = r["from_commit_sent"]
        lines.append(f"- one command at a time, {r['singles']} of them, from COMMIT sent to the first byte at the destination: "
                     f"p50 {judged(f['p50_ms'], *targets.LATENCY_MS['p50_ms'], True)} (5, 2 ms), p95 {f['p95_ms']}, "
                     f"p99 {judged(f['p99_ms'], *targets.LATENCY_MS['p99_ms'], True)} (15 ms); from COMMIT returned: "
                     f"p50 {r['after_commit_returned']['p50_ms']}, p99 {r['after_commit_returned']['p99_ms']} ms; "
                     f"{r['idle_wakeups']} wake-ups of the relay in {r['idle_s']} idle seconds")  # fmt: skip
    return [*lines, ""] if lines else []


def growth(run):
    bases = sorted({r["base"] for r in run.of("cell") if "@" in r["name"]})
    if len(bases) < 2:
        return []
    few, many = bases[0], bases[-1]
    rows = []
    for name, must, aim in [*targets.GROWTH, ("F4", None, None), ("F5", None, None)]:
        for n in CLIENTS:
            small, large = run.rate(f"{name}@{few}", n), run.rate(f"{name}@{many}", n)
            if small and large:
                found = ratio(large, small)
                shown = judged(found, must, aim) if must else figure(found)
                rows.append([name, str(n), figure(small), figure(large), shown, f"{must or ''}", f"{aim or ''}",
                             figure(run.field(f"{name}@{many}", "wal_b"))])  # fmt: skip
    lines = [f"## Growth: {few:,} against {many:,} finished commands", "",
             *table(["what", "clients", "few, per second", "many, per second", "ratio", "must", "aim", "WAL bytes, many"], rows)]
    for commands in sorted({r["commands"] for r in run.of("disk")}):
        ours, floor = (run.of("disk", commands=commands, schema=s)[-1] for s in ("command_ledger", "floors"))
        a, b = (r["heap_b"] + r["index_b"] for r in (ours, floor))
        lines.append(f"- bytes on disk of one of {commands:,} settled commands: {a:,.0f} (heap {ours['heap_b']:,.0f}, indexes "
                     f"{ours['index_b']:,.0f}); F6's tables {b:,.0f} ({floor['heap_b']:,.0f}, {floor['index_b']:,.0f}): "
                     f"{judged(a / b, *targets.DISK_RATIO, True)} (1.25, 1.0)")  # fmt: skip
    for r in run.of("session_memory"):
        first, last = r["series_kb"][0][1], r["series_kb"][-1][1]
        lines.append(f"- memory of one session over {r['registers']:,} registers: {first:,} kB after a tenth, {last:,} kB at the end: "
                     f"{mark(last / first, targets.SESSION_GROWTH, None, True)} (flat)")  # fmt: skip
    return [*lines, ""]


def snapshot(run):
    windows = run.of("snapshot")
    if not windows:
        return []
    rows = [[str(w["at_s"]), "yes" if w["held"] else "", figure(w["claims_per_s"]), str(w["claim_mean_ms"]), str(w["p50_ms"]),
             str(w["p99_ms"]), f"{w['dead_rows']:,}"] for w in windows]  # fmt: skip
    before = median([w["claim_mean_ms"] for w in windows if not w["held"] and w["at_s"] <= windows[-1]["at_s"] - windows[0]["hold_s"]])
    held = [w for w in windows if w["held"]]
    lines = [f"## A snapshot held {windows[0]['hold_s']} s, {windows[0]['rate']} cycles per second", "",
             *table(["at s", "held", "claims per second", "claim, mean ms", "sampled p50 ms", "sampled p99 ms", "dead rows"], rows)]
    if before and held and held[-1]["claim_mean_ms"]:
        lines.append(f"- mean of a claim at the end of the hold against before: x{judged(held[-1]['claim_mean_ms'] / before, *targets.SNAPSHOT_FACTOR, True)} "
                     f"(5, 1.5); worst window x{max(w['claim_mean_ms'] or 0 for w in held) / before:.2f}; its sampled p99 "
                     f"{held[-1]['p99_ms']} ms (aim {targets.SNAPSHOT_P99_MS:g})")  # fmt: skip
    return [*lines, ""]


def agent(run):
    rows = []
    for what, must, aim in targets.AGENT:
        for i, callers in enumerate(CLIENTS):
            ours, peer = (median([r["per_s"] for r in run.of("agent", side=side, what=what, callers=callers)])
                          for side in ("ledger", "agent_ledger"))  # fmt: skip
            if ours:
                rows.append([what, str(callers), figure(ours), figure(peer), judged(ratio(ours, peer), must[i], aim[i]),
                             f"{must[i]:g}", f"{aim[i]:g}"])  # fmt: skip
    if not rows:
        return []
    return ["## An agent through psycopg, against agent-ledger", "",
            *table(["what", "callers", "per second", "agent-ledger", "ratio", "must", "aim"], rows)]


def all_cells(run):
    rows = []
    for name in run.names():
        spreads = []
        for n in CLIENTS:
            some = run.cells(name, n)
            rates = [r["units_per_s"] for r in some]
            spreads.append("" if not some else f"{figure(min(rates))}/**{figure(median(rates))}**/{figure(max(rates))}; " + "/".join(
                f"{(median([r[p] for r in some]) or 0) / 1000:.2f}" for p in ("p50_us", "p95_us", "p99_us")))  # fmt: skip
        rows.append([name, *spreads, *(figure(run.field(name, f)) for f in ("wal_b", "fpi", "syncs", "xids", "heap_b", "index_b", "cpu_us"))])
    if not rows:
        return []
    return ["## All cells", "", "Per second min/**median**/max over the rounds; then p50/p95/p99 in ms of the first script. "
            "Per unit: WAL bytes, full-page images, flushes, transaction ids, heap and index bytes, processor us (pgbench included).",
            "", *table(["cell", *(f"{n} cl." for n in CLIENTS), "WAL", "FPI", "flushes", "xids", "heap", "index", "us"], rows)]


def main():
    results, seconds = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None
    run = Run(os.environ["BENCH_RECORDS"])
    os.makedirs(results, exist_ok=True)
    name = time.strftime("%Y-%m-%d") + ("-quick" if any(m["quick"] for m in run.of("machine")) else "")
    drawn = draw(run, results, name)
    text = [f"# Bench of {time.strftime('%Y-%m-%d')}", "", *machine(run),
            "Compare ratios of one run, never figures of two. *aim* and *must* say which target a figure reaches; "
            "MISSED says that it reaches none. docs/performance.md explains the cells.", ""]
    text += [f"![{words}]({file})\n" for file, words in drawn]
    for part in (ratios, at_most, relay, growth, snapshot, agent, all_cells, views):
        text += part(run)
    if seconds:
        text.append(f"Measured in {int(seconds) // 60} min {int(seconds) % 60} s.")
    path = os.path.join(results, name + ".md")
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join(text).rstrip() + "\n")
    missed = sum(line.count("MISSED") for line in text[8:])
    print(f"   {path}: {missed} targets missed")


if __name__ == "__main__":
    main()

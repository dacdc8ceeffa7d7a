"""Which pictures a run gets."""

import os

import chart


def draw(run, results, name):
    """Answers (file name, words) of each."""
    return [found for found in (growth(run, results, name), latency(run, results, name), snapshot(run, results, name)) if found]


def growth(run, results, name):
    bases = sorted({r["base"] for r in run.of("cell") if "@" in r["name"]})
    if len(bases) < 2:
        return None
    clients = max(r["clients"] for r in run.of("cell") if "@" in r["name"])
    groups = []
    for cell in ("register", "register_grows", "F4", "replay", "F5", "claim"):
        values = [run.rate(f"{cell}@{base}", clients) for base in (bases[0], bases[-1])]
        if values[0]:
            groups.append((cell, [100 * v / values[0] if v else None for v in values]))
    file = f"{name}-growth.svg"
    title = f"Rate over many finished commands, in % of that over few ({clients} clients)"
    chart.bars(os.path.join(results, file), title, "%", [f"{base:,} commands" for base in (bases[0], bases[-1])], groups)
    return file, title


def latency(run, results, name):
    groups = []
    for cell in ("F4", "register", "F5", "replay", "F6", "cycle"):
        some = run.cells(cell, 4)
        if some:
            values = [sorted(r[p] for r in some)[len(some) // 2] / 1000 for p in ("p50_us", "p95_us", "p99_us")]
            groups.append((cell, values))
    for r in run.of("latency")[-1:]:
        groups.append(("COMMIT to\ndestination", [r["from_commit_sent"][p] for p in ("p50_ms", "p95_ms", "p99_ms")]))
    if not groups:
        return None
    file = f"{name}-latency.svg"
    title = "Latency (4 clients; the way to the destination: one at a time)"
    chart.bars(os.path.join(results, file), title, "ms", ["p50", "p95", "p99"], groups)
    return file, title


def snapshot(run, results, name):
    windows = [w for w in run.of("snapshot") if w["claim_mean_ms"]]
    if len(windows) < 3:
        return None
    file = f"{name}-snapshot.svg"
    held = [w["at_s"] for w in windows if w["held"]]
    series = [("mean of all claims", [(w["at_s"], w["claim_mean_ms"]) for w in windows]),
              ("sampled p99, commit included", [(w["at_s"], w["p99_ms"]) for w in windows if w["p99_ms"]])]  # fmt: skip
    title = f"A claim while a snapshot is held ({windows[0]['rate']} cycles per second)"
    ticks = [(w["at_s"], str(w["at_s"])) for w in windows]
    shade = (held[0], held[-1], "held") if held else None
    chart.lines(os.path.join(results, file), title, "ms", "seconds", series, ticks, shade)
    return file, title

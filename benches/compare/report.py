"""The raw outputs as one table (table.md, and on stdout) and one chart (chart.svg): medians, and in brackets the least and the greatest."""

import glob
import html
import json
import math
import os
import statistics

from cells import LATENCY_SIZE, SIZES
from peers import ALL, FSYNC, NONE

LABELS = {"java": "Java client", "librdkafka": "librdkafka"}
COLOURS = {"mini-broker": "#1b7f5c", "kafka java": "#7a3b9a", "kafka librdkafka": "#b48ad0", "nats": "#2b6cb0", "redis": "#c2410c"}


def size_name(size):
    return {100: "100 B", 1024: "1 KiB", 10240: "10 KiB"}[size]


def short(number):
    """Three digits are more than such measurements have."""
    for limit, unit in ((1e6, " M"), (1e3, " k")):
        if number >= limit:
            return f"{number / limit:.3g}{unit}"
    return f"{number:.3g}"


def spread(values, show=short):
    if not values:
        return "-"
    middle = show(statistics.median(values))
    return middle if len(values) == 1 else f"{middle} ({show(min(values))} to {show(max(values))})"


class Results:
    """All raw results of a run."""

    def __init__(self, out):
        self.out = out
        with open(os.path.join(out, "notes.json"), encoding="utf-8") as file:
            self.notes = json.load(file)

    def cell(self, peer, durability, name, value):
        """A figure of every repeat of a cell."""
        found = []
        for path in sorted(glob.glob(os.path.join(self.out, "raw", f"{peer}.{durability}.{name}.[0-9]*.json"))):
            with open(path, encoding="utf-8") as file:
                result = json.load(file)
            if "error" not in result:
                found.append(value(result))
        return found

    def errors(self):
        for path in sorted(glob.glob(os.path.join(self.out, "raw", "*.json"))):
            with open(path, encoding="utf-8") as file:
                result = json.load(file)
            if "error" in result:
                yield os.path.basename(path), result["error"].splitlines()[0]


def rate(result):
    return result["records"] / result["seconds"]


def rows_of(peers):
    """(name, peer, client, numbers of connections) of each row."""
    for peer in peers:
        for client, connections in peer.clients.items():
            label = peer.name if client == "own" else f"{peer.name}, {LABELS[client]}"
            yield label, peer.name, client, connections


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return lines + ["| " + " | ".join(row) + " |" for row in rows]


def throughput_table(results, peers, kind, durability):
    rows = []
    for connections in (1, 16):
        for label, peer, client, all_connections in rows_of(peers):
            if connections not in all_connections:
                continue
            row = [label, str(connections)]
            for size in SIZES:
                rates = results.cell(peer, durability, f"{kind}-{client}-{size}-{connections}", rate)
                megabytes = f", {short(statistics.median(rates) * size / 1e6)}" if rates else ""
                row.append(spread(rates) + megabytes)
            rows.append(row)
    return table(["", "connections", *(f"{size_name(s)}: records/s, MB/s" for s in SIZES)], rows)


def latency_table(results, peers):
    rows = []
    for durability in (NONE, FSYNC):
        for peer in peers:
            figures = [
                spread(results.cell(peer.name, durability, "latency", lambda r, q=q: r[q])) for q in ("p50_us", "p99_us", "p999_us", "max_us")
            ]
            rows.append([peer.name, durability, *figures])
    return table(["", "durability", "p50 us", "p99 us", "p99.9 us", "longest us"], rows)


def cost_table(results, peers):
    rows = []
    for label, peer, client, _ in rows_of(peers):
        row = [label]
        for kind in ("produce", "consume"):
            for side in ("broker_cpu", "client_cpu"):
                row.append(spread(results.cell(peer, NONE, f"{kind}-{client}-100-1", lambda r, s=side: r[s] / r["records"] * 1e6)))
        row.append(spread(results.cell(peer, NONE, f"produce-{client}-100-1", lambda r: r["disk"] / r["records"])))
        rows.append(row)
    heads = [f"{kind}: {side}" for kind in ("produce", "consume") for side in ("broker", "client")]
    return table(["CPU s per million records of 100 B", *heads, "disk bytes per record"], rows)


def memory_table(results, peers):
    mib = 1 / (1 << 20)
    rows = []
    for peer in peers:
        row = [peer.name, spread(results.cell(peer.name, NONE, "start", lambda r: r["seconds"] * 1e3))]
        for cell in ("start", "fill"):
            for figure in ("rss", "anon"):
                row.append(spread(results.cell(peer.name, NONE, cell, lambda r, f=figure: r[f] * mib)))
        rows.append(row)
    filled = f"after {results.notes['arguments']['fill_bytes'] / 1e9:g} GB"
    heads = ["start to first answer, ms", "RSS at rest, MiB", "of it anonymous", f"RSS {filled}, MiB", "of it anonymous"]
    return table(["", *heads], rows)


def write(out, names):
    results = Results(out)
    peers = [peer for peer in ALL if peer.name in names]
    notes = results.notes
    lines = [
        "# mini-broker beside Kafka, NATS JetStream and Redis Streams",
        "",
        f"{notes['machine']}. Medians of the repeats, least and greatest in brackets; `raw/` has what each client said.",
        f"Run with {json.dumps(notes['arguments'])}.",
        "",
    ]
    for name, version in notes["versions"].items():
        lines.append(f"- {name}: {version}; none: {notes['settings'][name][NONE]}; fsync: {notes['settings'][name][FSYNC]}")
    lines += [f"- {name} could not be had: {reason}" for name, reason in notes["missing"].items()]
    sections = [
        ("Produce, no fsync", throughput_table(results, peers, "produce", NONE)),
        ("Produce, fsync before the answer", throughput_table(results, peers, "produce", FSYNC)),
        ("Consume, from memory", throughput_table(results, peers, "consume", NONE)),
        (
            f"End-to-end latency, {notes['arguments']['rate']} records/s of {LATENCY_SIZE} B, from the intended time of sending to arrival",
            latency_table(results, peers),
        ),
        ("Costs, no fsync, 1 connection", cost_table(results, peers)),
        ("Memory and start, no fsync", memory_table(results, peers)),
    ]
    for title, section in sections:
        lines += ["", f"## {title}", "", *section]
    failed = list(results.errors())
    if failed:
        lines += ["", "## Cells that failed", ""] + [f"- {name}: {error}" for name, error in failed]
    text = "\n".join(lines) + "\n"
    with open(os.path.join(out, "table.md"), "w", encoding="utf-8") as file:
        file.write(text)
    with open(os.path.join(out, "chart.svg"), "w", encoding="utf-8") as file:
        file.write(chart(results, peers))
    print(text)
    print(f"table: {out}/table.md\nchart: {out}/chart.svg\nraw:   {out}/raw/")


def chart(results, peers):
    """Four panels of bars with a logarithmic axis; a thin line is the range."""
    series = [(label, peer, client) for label, peer, client, _ in rows_of(peers)]
    throughput = [(f"{size_name(s)}, {c} conn.", s, c) for s in SIZES for c in (1, 16)]
    panels = []
    for title, kind, durability in (
        ("produce, no fsync: records/s", "produce", NONE),
        ("produce, fsync: records/s", "produce", FSYNC),
        ("consume: records/s", "consume", NONE),
    ):
        groups = []
        for label, size, connections in throughput:
            cells = [results.cell(p, durability, f"{kind}-{c}-{size}-{connections}", rate) for _, p, c in series]
            groups.append((label, cells))
        panels.append((title, groups))
    groups = []
    for durability in (NONE, FSYNC):
        for quantile, name in (("p50_us", "p50"), ("p99_us", "p99"), ("p999_us", "p99.9")):
            # One client measures latency for each peer: Kafka's is librdkafka.
            cells = [
                results.cell(p, durability, "latency", lambda r, q=quantile: r[q]) if c in ("own", "librdkafka") else [] for _, p, c in series
            ]
            groups.append((f"{name}, {durability}", cells))
    panels.append(("end-to-end latency: microseconds (less is better)", groups))
    return draw(series, panels)


WIDTH, PANEL, LEFT, TOP = 1000, 250, 70, 60


def draw(series, panels):
    height = TOP + PANEL * len(panels)
    svg = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" font-family="sans-serif" font-size="11">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
    ]
    colours = [COLOURS[peer if client == "own" else f"{peer} {client}"] for _, peer, client in series]
    for i, ((label, _, _), colour) in enumerate(zip(series, colours)):
        x = LEFT + i * 180
        svg.append(f'<rect x="{x}" y="20" width="12" height="12" fill="{colour}"/><text x="{x + 18}" y="30">{html.escape(label)}</text>')
    for number, (title, groups) in enumerate(panels):
        svg += panel(TOP + number * PANEL, title, groups, colours)
    return "\n".join([*svg, "</svg>"]) + "\n"


def panel(top, title, groups, colours):
    values = [v for _, cells in groups for cell in cells for v in cell]
    svg = [f'<text x="{LEFT}" y="{top + 12}" font-weight="bold">{html.escape(title)}</text>']
    if not values:
        return svg
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    high = max(high, low + 1)
    base, room = top + PANEL - 50, PANEL - 80

    def y(value):
        return base - (math.log10(value) - low) / (high - low) * room

    for power in range(low, high + 1):
        svg.append(f'<line x1="{LEFT}" x2="{WIDTH - 20}" y1="{y(10**power):.1f}" y2="{y(10**power):.1f}" stroke="#ddd"/>')
        svg.append(f'<text x="{LEFT - 6}" y="{y(10**power) + 4:.1f}" text-anchor="end">{short(10**power)}</text>')
    step = (WIDTH - LEFT - 20) / len(groups)
    bar = (step - 20) / len(colours)
    for i, (label, cells) in enumerate(groups):
        x = LEFT + i * step + 10
        svg.append(f'<text x="{x + (step - 20) / 2:.1f}" y="{base + 16}" text-anchor="middle">{html.escape(label)}</text>')
        for j, (cell, colour) in enumerate(zip(cells, colours)):
            if cell:
                middle, at = statistics.median(cell), x + j * bar
                svg.append(f'<rect x="{at:.1f}" y="{y(middle):.1f}" width="{bar - 2:.1f}" height="{base - y(middle):.1f}" fill="{colour}"/>')
                centre = at + (bar - 2) / 2
                svg.append(f'<line x1="{centre:.1f}" x2="{centre:.1f}" y1="{y(max(cell)):.1f}" y2="{y(min(cell)):.1f}" stroke="black"/>')
                svg.append(f'<text x="{centre:.1f}" y="{y(max(cell)) - 3:.1f}" text-anchor="middle" font-size="8">{short(middle)}</text>')
    return svg

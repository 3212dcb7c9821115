"""The page of measurements: bar charts and tables of every row in bench/results."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from drawing import GREEN, GREY, INK, ORANGE, RED, Drawing

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "bench" / "results"
PASSES = {"fwd": "forward", "bwd": "backward", "decode": "decode"}
PEERS = {
    "torch": "PyTorch",
    "cudnn": "cuDNN",
    "fa2": "flash-attention 2",
    "flex": "FlexAttention",
    "mem_efficient": "memory-efficient (PyTorch)",
}
COLOURS = ("#3b63c9", ORANGE, GREEN, "#8e6bbf", RED)
BAR, GAP, LEFT, WIDE = 9, 8, 250, 400
Row = dict[str, Any]


def rows_of(file: Path) -> list[Row]:
    """The rows with a throughput. If a cell has several rows, the last one counts, as in bench/."""
    found: dict[str, Row] = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        row = json.loads(line) if line.strip() else {}
        if row.get("tflops") and row.get("pass") in PASSES:
            row.setdefault("cell", f"plain/{row['kernel']}-{label(row)}/{row['dtype']}")
            found[f"{row['cell']} {row['pass']} {row['dtype']}"] = row
    return list(found.values())


def label(row: Row) -> str:
    heads = (
        f"{row['heads_q']}"
        if row["heads_q"] == row["heads_kv"]
        else (f"{row['heads_q']}/{row['heads_kv']}")
    )
    kind = "causal" if row["causal"] else "full"
    return f"b{row['batch']} h{heads} n{row['len_q']} d{row['dim_qk']} {kind}"


def suite(row: Row) -> str:
    return str(row["cell"]).split("/")[0]


def name_of(row: Row) -> str:
    cell = str(row["cell"]).split("/")
    return label(row) if suite(row) == "plain" else cell[1] if len(cell) > 1 else label(row)


def speed(tflops: float) -> str:
    return f"{tflops:.3g} TFLOP/s" if tflops >= 2 else f"{1000 * tflops:.0f} GFLOP/s"


def bars(rows: list[Row], title: str) -> Drawing:
    """One group of bars per row: libattn, then its peers of the same run."""
    peers = list(dict.fromkeys(name for row in rows for name in row["peers"]))
    most = max(max([row["tflops"], *(x or 0 for x in row["peers"].values())]) for row in rows)
    height = sum((1 + len(row["peers"])) * BAR + GAP for row in rows)
    drawing = Drawing(LEFT + WIDE + 110, height + 62, title)
    drawing.text(10, 18, title, bold=True, size=13)
    x = 10.0
    for colour, name in zip(COLOURS, ["libattn", *(PEERS.get(p, p) for p in peers)], strict=False):
        drawing.rect(x, 28, 11, 11, colour)
        drawing.text(x + 16, 38, name, 11)
        x += 32 + 6.6 * len(name)
    y = 52.0
    for row in rows:
        speeds = [("libattn", row["tflops"])]
        speeds += [(p, row["peers"][p] or 0.0) for p in peers if p in row["peers"]]
        drawing.text(
            LEFT - 8, y + len(speeds) * BAR / 2 + 4, name_of(row), 10.5, "end", INK, code=True
        )
        for peer, value in speeds:
            colour = COLOURS[0 if peer == "libattn" else 1 + peers.index(peer)]
            tip = f"{PEERS.get(peer, peer)}: {speed(value)}" if value else f"{peer}: not run"
            drawing.rect(LEFT, y, max(1.0, WIDE * value / most), BAR - 1, colour, tip=tip)
            size = 9.5 if peer == "libattn" else 7.5
            if value:
                drawing.text(LEFT + WIDE * value / most + 5, y + 8, speed(value), size, fill=GREY)
            y += BAR
        y += GAP
    return drawing


def ratios(rows: list[Row], title: str) -> Drawing:
    """Options relative to the plain cell of the same work."""
    drawing = Drawing(LEFT + WIDE + 110, len(rows) * 16 + 62, title)
    drawing.text(10, 18, title, bold=True, size=13)
    drawing.text(10, 38, "useful FLOP/s relative to the plain cell of the same work", 11, fill=GREY)
    most = max(1.0, *(row["against"]["ratio"] for row in rows))
    one = LEFT + WIDE / most
    for n, row in enumerate(rows):
        ratio, y = row["against"]["ratio"], 50 + 16 * n
        drawing.text(LEFT - 8, y + 10, name_of(row), 10.5, "end", INK, code=True)
        drawing.rect(LEFT, y, WIDE * ratio / most, 11, COLOURS[0], tip=speed(row["tflops"]))
        drawing.text(LEFT + WIDE * ratio / most + 5, y + 9, f"{ratio:.2f}", 9.5, fill=GREY)
    drawing.line([(one, 46), (one, 52 + 16 * len(rows))], INK, 1, "3 3")
    return drawing


def error_ratios() -> Drawing:
    """Each benchmark cell's largest error, relative to that of a naive evaluation."""
    groups: dict[str, list[float]] = {}
    for file in sorted(RESULTS.glob("*/*.jsonl")):
        for row in rows_of(file):
            ratio = (row.get("error") or {}).get("ratio_to_naive")
            if ratio and not file.stem.endswith("before_after"):
                name = f"{row['backend']} {row['dtype']} {PASSES[row['pass']]}"
                groups.setdefault(name, []).append(ratio)
    title = "Largest error of each benchmark cell over that of a naive evaluation"
    drawing = Drawing(LEFT + WIDE + 40, 26 * len(groups) + 90, title)
    drawing.text(10, 20, title, bold=True)
    bottom = 44 + 26 * len(groups)
    for tick in range(6):
        x = LEFT + WIDE * tick / 5
        drawing.line([(x, 36), (x, bottom)], "#d0d7de" if tick != 4 else RED)
        drawing.text(x, bottom + 16, f"{tick / 2:g}", 11, "middle", GREY)
    drawing.text(LEFT + WIDE * 0.8, bottom + 32, "limit of the tests", 11, "middle", RED)
    for n, (name, values) in enumerate(groups.items()):
        y = 50 + 26 * n
        drawing.text(LEFT - 10, y + 5, name, 11, "end", code=True)
        for value in values:
            x = LEFT + WIDE * min(value, 2.5) / 2.5
            drawing.rect(x - 2, y - 5, 4, 10, "#3b63c9", tip=f"{value:.2f}")
    return drawing


def machine(row: Row) -> str:
    threads = row.get("threads") or 1
    more = f", {threads} threads" if threads > 1 else ""
    target = re.search(r"target=(\w+)", row.get("config") or "")
    more += f", {target[1]}" if target else ""
    return f"{row['device']}{more} ({row['backend']})"


def slower(rows: list[Row]) -> list[str]:
    """A table of the cells where a peer of the same run is faster, the slowest first."""
    found = []
    for row in rows:
        for peer, value in row["peers"].items():
            if value and row["tflops"] < value:
                found.append((row["tflops"] / value, row, peer, value))
    if not found:
        return []
    found.sort(key=lambda entry: entry[0])
    lines = [
        f'<details markdown="1"><summary>Slower than a peer in {len(found)} comparisons, '
        f"the slowest first</summary>\n",
        "| cell | pass | type | libattn | peer | ratio |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for ratio, row, peer, value in found:
        lines.append(
            f"| {name_of(row)} | {PASSES[row['pass']]} | {row['dtype']} | {speed(row['tflops'])} "
            f"| {PEERS.get(peer, peer)}: {speed(value)} | {ratio:.2f} |"
        )
    return ["\n".join([*lines, "\n</details>"])]


def section(file: Path) -> tuple[list[str], dict[str, Drawing]]:
    rows = rows_of(file)
    if not rows:
        return [], {}
    folder = file.parent.name
    stem = re.sub(r"[^a-z0-9]+", "_", f"{folder}_{file.stem}".lower())
    shown = f"bench/results/{folder}/{file.name}"
    dates = sorted(str(row["date"])[:10] for row in rows)
    commits = sorted({str(row["commit"]) for row in rows})
    parts = [
        f"## {machine(rows[0])}: {file.stem}",
        f"`{shown}`, measured {dates[0]} to {dates[-1]}, commits {', '.join(commits[:6])}.",
    ]
    plots: dict[str, Drawing] = {}
    kinds = dict.fromkeys((suite(r), r["dtype"], r["pass"]) for r in rows)
    for kind, dtype, pass_ in kinds:
        part = [r for r in rows if (suite(r), r["dtype"], r["pass"]) == (kind, dtype, pass_)]
        title = f"{kind}, {dtype}, {PASSES[pass_]}"
        groups = {title: part}
        if len(part) > 24:  # a picture for each head dim
            groups = {}
            for row in part:
                groups.setdefault(f"{title}, dim {row['dim_qk']}", []).append(row)
        for text, group in groups.items():
            name = re.sub(r"[^a-z0-9]+", "_", f"{stem}_{text}".lower())
            plots[name] = bars(group, text)
            parts.append(f"![{text}](pictures/{name}.svg)")
        compared = [r for r in part if (r.get("against") or {}).get("ratio")]
        if compared:
            name = re.sub(r"[^a-z0-9]+", "_", f"{stem}_{title}_ratio".lower())
            plots[name] = ratios(compared, f"{title}: relative to plain")
            parts.append(f"![{title}, relative to plain](pictures/{name}.svg)")
    return parts + slower(rows), plots


def page() -> tuple[str, dict[str, Drawing]]:
    parts = [
        "# Measurements",
        "Every row that is committed in `bench/results`, the slow ones included, except "
        "comparisons of two versions (`*before_after.jsonl`); nothing on this page is typed in by "
        "hand. [The method](development/benchmarks.md) says what is timed, "
        "how each cell is verified first, and how FLOP are counted. Peers ran in the same run on "
        "the same machine. In the names: b batch, h heads (of q/of k), n length, d head dim.",
    ]
    plots: dict[str, Drawing] = {}
    for file in sorted(RESULTS.glob("*/*.jsonl")):
        if file.stem.endswith("before_after"):
            continue
        more, drawn = section(file)
        parts += more
        plots |= drawn
    return "\n\n".join(parts) + "\n", plots

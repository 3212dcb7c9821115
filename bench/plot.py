#!/usr/bin/env python3
"""Makes plots (PNG) from benchmark rows: plain cells with their peers, speed by length, options.

usage: bench/plot.py ROWS.jsonl [...] [--out FOLDER]      needs matplotlib (./dev setup)
"""

import argparse
import pathlib

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402  (after a backend without a display is selected)
from rows import is_plain, read_rows  # noqa: E402

PASSES = {"fwd": "forward", "bwd": "backward", "decode": "decode"}
LABELS = {
    "torch": "PyTorch",
    "cudnn": "cuDNN",
    "fa2": "flash-attention 2",
    "flex": "FlexAttention",
    "mem_efficient": "memory-efficient",
}


def plain_label(row):
    """Heads x length x dim, preceded by the batch if it is not 1."""
    kind = "causal" if row["causal"] else "full"
    batch = f"{row['batch']}x\n" if row["batch"] > 1 else ""
    return f"{batch}{row['heads_q']}x\n{row['len_q']}x\n{row['dim_qk']}\n{kind}"


def title(row):
    return f"{row['device']}, {row['threads']} threads" if row["threads"] > 1 else row["device"]


def plot_plain(rows, path):
    kinds = sorted({(r["dtype"], r["pass"]) for r in rows}, key=lambda k: (k[0] != "f32", k[1]))
    peers = list(dict.fromkeys(name for r in rows for name in r["peers"]))
    unit, scale = ("TFLOP/s", 1) if max(r["tflops"] for r in rows) > 20 else ("GFLOP/s", 1e3)
    most = max(sum((r["dtype"], r["pass"]) == kind for r in rows) for kind in kinds)
    size = (max(10, 0.5 * most), 2.8 * len(kinds))
    figure, axes = plt.subplots(len(kinds), 1, figsize=size, squeeze=False, layout="constrained")
    width = 0.8 / (1 + len(peers))
    for axis, (dtype, which) in zip(axes[:, 0], kinds, strict=True):
        part = [r for r in rows if (r["dtype"], r["pass"]) == (dtype, which)]
        places = range(len(part))
        bars = {"libattn": [r["tflops"] for r in part]}
        bars |= {LABELS.get(p, p): [r["peers"].get(p) or 0.0 for r in part] for p in peers}
        for n, (label, speeds) in enumerate(bars.items()):
            at = [x + (n - len(peers) / 2) * width for x in places]
            axis.bar(at, [scale * speed for speed in speeds], width, label=label)
        axis.margins(x=0.01)
        axis.set_xticks(list(places), [plain_label(r) for r in part], fontsize=7)
        axis.set_ylabel(unit)
        axis.set_title(f"{dtype} {PASSES[which]}")
        axis.legend(loc="upper left", fontsize=8, ncols=len(bars))
        axis.set_ylim(top=1.15 * axis.get_ylim()[1])  # room for the legend
    sizes = "heads x length x dim"
    if any(r["batch"] > 1 for r in rows):
        sizes = f"batch x {sizes}; batch 1 is not named"
    figure.suptitle(f"{title(rows[0])} ({sizes})")
    figure.savefig(path, dpi=120)
    plt.close(figure)


def plot_lengths(rows, path):
    """One row of axes for each type and pass, one column for each dim and mask."""
    kinds = list(dict.fromkeys((r["dtype"], r["pass"]) for r in rows))
    shapes = sorted({(r["dim_qk"], r["causal"]) for r in rows})
    peers = list(dict.fromkeys(name for r in rows for name in r["peers"]))
    figure, axes = plt.subplots(
        len(kinds),
        len(shapes),
        figsize=(3.2 * len(shapes), 2.6 * len(kinds)),
        squeeze=False,
        layout="constrained",
    )
    for line, kind in zip(axes, kinds, strict=True):
        for axis, (dim, causal) in zip(line, shapes, strict=True):
            part = [r for r in rows if (r["dtype"], r["pass"]) == kind]
            part = [r for r in part if (r["dim_qk"], r["causal"]) == (dim, causal)]
            part.sort(key=lambda r: r["len_q"])
            lengths = [r["len_q"] for r in part]
            axis.plot(lengths, [r["tflops"] for r in part], marker="o", label="libattn")
            for peer in peers:
                speeds = [r["peers"].get(peer) for r in part]
                axis.plot(lengths, speeds, marker=".", label=LABELS.get(peer, peer))
            axis.set_xscale("log", base=2)
            axis.set_xticks(lengths, [f"{n // 1024}K" for n in lengths])
            axis.set_ylim(bottom=0)
            axis.set_title(
                f"{kind[0]} {PASSES[kind[1]]}, dim {dim}, {'causal' if causal else 'full'}",
                fontsize=9,
            )
        line[0].set_ylabel("TFLOP/s")
    axes[0, 0].legend(fontsize=8)
    about = f"batch {rows[0]['batch']}, {rows[0]['heads_q']} heads"
    figure.suptitle(f"{title(rows[0])} ({about}; by length)")
    figure.savefig(path, dpi=120)
    plt.close(figure)


def plot_options(rows, path):
    kinds = sorted({(r["dtype"], r["pass"]) for r in rows}, key=lambda k: (k[0] != "f32", k[1]))
    names = list(dict.fromkeys(r["cell"].split("/")[1] for r in rows))
    figure, axis = plt.subplots(figsize=(9, 0.42 * len(names) + 2), layout="constrained")
    height = 0.8 / len(kinds)
    for n, (dtype, which) in enumerate(kinds):
        ratios = {
            r["cell"].split("/")[1]: r["against"]["ratio"]
            for r in rows
            if (r["dtype"], r["pass"]) == (dtype, which)
        }
        places = [names.index(name) + (n - (len(kinds) - 1) / 2) * height for name in ratios]
        axis.barh(places, list(ratios.values()), height, label=f"{dtype} {PASSES[which]}")
    axis.axvline(1.0, color="black", linewidth=0.8)
    axis.set_yticks(range(len(names)), names)
    axis.invert_yaxis()
    axis.set_xlabel("useful FLOP/s over those of the plain cell of the same work")
    axis.set_title(title(rows[0]))
    axis.legend(fontsize=8)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", nargs="+")
    parser.add_argument("--out", default="build/plots", type=pathlib.Path)
    args = parser.parse_args()
    rows = read_rows(args.rows)
    args.out.mkdir(parents=True, exist_ok=True)
    drawn = 0
    machines = dict.fromkeys((r["device"], r["threads"]) for r in rows)
    for device, threads in machines:
        here = [r for r in rows if (r["device"], r["threads"]) == (device, threads)]
        stem = "".join(c if c.isalnum() else "-" for c in f"{device}-{threads}t".lower())
        plain = [r for r in here if is_plain(r)]
        lengths = [r for r in here if r["cell"].startswith("lengths/")]
        options = [r for r in here if "against" in r]
        for part, kind, draw in (
            (plain, "plain", plot_plain),
            (lengths, "lengths", plot_lengths),
            (options, "options", plot_options),
        ):
            if part:
                path = args.out / f"{stem}-{kind}.png"
                draw(part, path)
                print(path)
                drawn += 1
    if drawn == 0:
        raise SystemExit("plot: no rows of plain cells or of cells with an option")


if __name__ == "__main__":
    main()

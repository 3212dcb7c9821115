"""Pictures of attention by matplotlib: weights of chosen rows, tiles that a call visits, entropies.

    import libattn.plot
    libattn.plot.weights(q, k, rows=slice(0, 64), head=3, causal=True).figure.savefig("head.png")

Each function draws one sequence and one head into `ax` (None = a new figure) and returns the axes.
matplotlib is imported by the first call; without it ImportError says how to get it.
"""

from __future__ import annotations

import argparse
import re
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from ._functions import described
from ._options import Options
from ._queries import explain
from ._types import Array, Indices
from ._values import integer, shown
from ._weights import Call, attention_weights, chosen, host

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ._options import Unpack

__all__ = ["entropies", "tiles", "weights"]

HIDDEN, PARTIAL, FULL = 0, 1, 2
_COLORS = ("#ffffff", "#9ecae1", "#3182bd")


def _pyplot() -> Any:
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        raise ImportError(
            "libattn.plot needs matplotlib, which is not installed: pip install 'libattn[plot]'"
        ) from None
    return plt


def _axes(ax: Axes | None, size: tuple[float, float]) -> Axes:
    plt = _pyplot()
    if ax is None:
        _, ax = plt.subplots(figsize=size, layout="constrained")
    return ax


def _labels(ax: Axes, title: str, of_rows: str) -> None:
    ax.set_title(title, fontsize=10)
    ax.set_xlabel("key")
    ax.set_ylabel(of_rows)


def _words(options: Any) -> str:
    """The options that are on, in short."""
    found = []
    for name, value in options.items():
        if value is None or value is False or (name == "dropout_p" and not value):
            continue
        plain = isinstance(value, int | float | str | tuple) and value is not True
        found.append(f"{name}={value}" if plain else name)
    return ", ".join(found) or "no options"


def _one_of(name: str, value: Any, size: int) -> int:
    found = integer(name, value)
    if not 0 <= found < size:
        raise ValueError(f"plot: {name}: found {found}; accepted 0 to {size - 1}")
    return found


def weights(
    q: Array,
    k: Array,
    *,
    rows: Indices,
    batch: int = 0,
    head: int = 0,
    ax: Axes | None = None,
    **options: Unpack[Options],
) -> Axes:
    """One head's attention map: a line of the image for each chosen row, a column for each key.

    q, k, rows, options: as for libattn.attention_weights.
    batch, head: one sequence and one head of q.
    ax: axes of matplotlib to draw into; None = a new figure.

    The colors are those of the square root of the weights, so that small ones are visible.

    Returns the axes. Raises what libattn.attention_weights raises.
    """
    found = attention_weights(q, k, rows=rows, batch=batch, heads=head, **options)
    found = host(found)[0, 0]
    call = Call(q, k, options)
    numbers = chosen("rows", rows, call.len_q)
    wide = float(np.clip(8.0 * found.shape[1] / max(found.shape[0], 1), 4.0, 10.0))
    ax = _axes(ax, (wide, 4.5))
    from matplotlib.colors import PowerNorm

    norm = PowerNorm(0.5, vmin=0.0, vmax=max(float(np.nanmax(found, initial=0.0)), 1e-30))
    image = ax.imshow(found, aspect="auto", cmap="viridis", norm=norm, interpolation="nearest")
    if len(numbers) <= 16:
        ax.set_yticks(range(len(numbers)), [str(one) for one in numbers])
    elif numbers == list(range(numbers[0], numbers[0] + len(numbers))):
        image.set_extent((-0.5, found.shape[1] - 0.5, numbers[-1] + 0.5, numbers[0] - 0.5))
    ax.figure.colorbar(image, ax=ax, label="weight")
    _labels(ax, f"head {head}: {_words(options)}", "query")
    return ax


def entropies(
    q: Array,
    k: Array,
    *,
    rows: Indices,
    batch: int = 0,
    heads: Indices | None = None,
    ax: Axes | None = None,
    **options: Unpack[Options],
) -> Axes:
    """The entropy of each chosen row, a line for each head: -sum p log2 p, in bits.

    q, k, rows, heads, options: as for libattn.attention_weights.
    batch: one sequence.
    ax: axes of matplotlib to draw into; None = a new figure.

    0 bits: all the weight is on one key; log2(n) bits: n keys share it equally. A sink's share is
    left out: the weights of a row are divided by their sum. Rows that see no key have none.

    Returns the axes. Raises what libattn.attention_weights raises.
    """
    found = host(attention_weights(q, k, rows=rows, batch=batch, heads=heads, **options))[0]
    call = Call(q, k, options)
    numbers = chosen("rows", rows, call.len_q)
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = found / found.sum(-1, keepdims=True)
        bits = -np.where(shares > 0, shares * np.log2(shares), 0.0).sum(-1)
    bits = np.where(found.sum(-1) > 0, bits, np.nan)
    ax = _axes(ax, (7.0, 4.0))
    for head, line in zip(chosen("heads", heads, call.heads_q), bits, strict=True):
        ax.plot(numbers, line, label=f"head {head}", linewidth=1)
    _labels(ax, f"entropy of rows: {_words(options)}", "bits")
    ax.set_xlabel("query")
    if 1 < len(bits) <= 12:
        ax.legend(fontsize=8)
    return ax


def _planned(q: Array, k: Array, options: Any, pass_: str) -> tuple[int, int, str]:
    """Queries and keys of a tile of the plan, and the kernel's name."""
    problem, device = described("plot.tiles", "forward", {"q": q, "k": k, "v": k}, options)
    text = explain(problem, pass_, device)
    found = re.search(r"plan: kernel=(\S+) tile_q=(\d+) tile_kv=(\d+)", text)
    if found is None:
        raise ValueError(f"plot.tiles: tile: found no plan; accepted (queries, keys)\n{text}")
    return int(found[2]), int(found[3]), found[1]


def visited(call: Call, batch: int, tile: tuple[int, int]) -> Any:
    """[tiles of queries, tiles of keys]: HIDDEN, PARTIAL or FULL.

    The library visits the tiles from the first to the last key that a row of the tile sees by
    causality, window, ranges and lengths; masks and biases are read in the tiles it visits.
    """
    one = call.sequences[batch]
    height, width = tile
    shape = -(-max(one.len_q, 1) // height), -(-max(one.len_kv, 1) // width)
    found = np.full(shape, HIDDEN)
    hides = "mask" in call.options
    for at in range(shape[0]):
        rows = np.arange(at * height, min((at + 1) * height, one.len_q))
        first, last = call.ranges(one, rows)
        some = first < last
        if not some.any():
            continue
        begin, end = first[some].min(), last[some].max()
        for j in range(begin // width, -(-end // width)):
            whole = (first <= j * width) & (last >= min((j + 1) * width, one.len_kv))
            found[at, j] = FULL if whole.all() and not hides else PARTIAL
    return found


def tiles(
    q: Array,
    k: Array,
    *,
    batch: int = 0,
    tile: tuple[int, int] | None = None,
    pass_: str = "forward",
    ax: Axes | None = None,
    **options: Unpack[Options],
) -> Axes:
    """The tiles of scores that a call visits: full ones (every pair visible), partial, skipped.

    q, k, options: as for libattn.attention; only shapes, lengths and ranges are read.
    batch: one sequence.
    tile: (queries, keys) of a tile; None = those of the plan that libattn.explain shows.
    pass_: "forward" or "backward", for the plan's tiles.
    ax: axes of matplotlib to draw into; None = a new figure.

    Returns the axes; the title has the share of visited tiles. Raises ValueError for a broken rule,
    libattn.Unsupported if no backend supports the call.
    """
    call = Call(q, k, {name: x for name, x in options.items() if name != "dropout_p"})
    batch = _one_of("batch", batch, call.batch)
    kernel = ""
    if tile is None:
        rows, keys, kernel = _planned(q, k, options, pass_)
        tile = rows, keys
    if len(tile) != 2 or min(tile) < 1:
        raise ValueError(f"plot.tiles: tile: found {shown(tile)}; accepted (queries, keys)")
    found = visited(call, batch, tile)
    share = float((found != HIDDEN).mean())
    ax = _axes(ax, (5.0, 4.6))
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    extent = (0, found.shape[1] * tile[1], found.shape[0] * tile[0], 0)
    ax.imshow(found, cmap=ListedColormap(_COLORS), vmin=0, vmax=2, extent=extent, aspect="auto")
    for axis, step, count in ((ax.xaxis, tile[1], found.shape[1]), (ax.yaxis, tile[0], len(found))):
        if count <= 64:
            axis.set_ticks(np.arange(count + 1) * step, minor=True)
    ax.grid(which="minor", color="#dddddd", linewidth=0.4)
    names = ("skipped", "partial", "full")
    handles = [
        Patch(facecolor=c, edgecolor="#999999", label=n)
        for c, n in zip(_COLORS, names, strict=True)
    ]
    ax.legend(handles=handles, fontsize=8, loc="upper right")
    of = f"{kernel} " if kernel else ""
    title = f"{_words(options)}\n{of}tiles of {tile[0]} x {tile[1]}: {share:.0%} visited"
    _labels(ax, title, "query")
    return ax


# --- the command --------------------------------------------------------------------------------


def _rows(text: str) -> Any:
    try:
        if ":" in text:
            return slice(*(int(part) if part else None for part in text.split(":")))
        return [int(part) for part in text.split(",")]
    except ValueError:
        accepted = "numbers, 3,7,9, or a range, 0:64"
        raise argparse.ArgumentTypeError(f"found {text!r}; accepted {accepted}") from None


def main(words: list[str]) -> int:
    """`attn plot`: draws from .npy files; returns the exit code."""
    parser = argparse.ArgumentParser(prog="attn plot", description="Pictures of attention.")
    parser.add_argument("what", choices=("weights", "tiles", "entropies"))
    parser.add_argument("--q", required=True, help=".npy file [batch, len, heads, dim]")
    parser.add_argument("--k", required=True, help=".npy file [batch, len, heads, dim]")
    parser.add_argument("--output", required=True, help="a .png, .svg or .pdf file")
    parser.add_argument("--rows", type=_rows, help="queries: 3,7,9 or 0:64 (not for tiles)")
    parser.add_argument("--batch", type=int, default=0, help="the sequence; default 0")
    parser.add_argument("--head", type=int, help="the head of q; default 0, entropies: all")
    parser.add_argument("--causal", action="store_true")
    parser.add_argument("--diagonal", help="bottom_right (default), top_left, or a number")
    parser.add_argument("--window-left", type=int)
    parser.add_argument("--window-right", type=int)
    parser.add_argument("--softcap", type=float)
    parser.add_argument("--scale", type=float)
    given = parser.parse_args(words)
    if given.what != "tiles" and given.rows is None:
        parser.error("--rows: found none; accepted 3,7,9 or 0:64")
    options: dict[str, Any] = {"batch": given.batch}
    if given.causal:
        options["causal"] = True
    if given.window_left is not None or given.window_right is not None:
        options["window"] = (given.window_left, given.window_right)
    if given.diagonal is not None:
        number = given.diagonal.lstrip("-").isdigit()
        options["diagonal"] = int(given.diagonal) if number else given.diagonal
    options |= {n: getattr(given, n) for n in ("softcap", "scale") if getattr(given, n) is not None}
    if given.what != "tiles":
        options["rows"] = given.rows
    if given.what == "weights":
        options["head"] = given.head or 0
    elif given.what == "entropies":
        options["heads"] = given.head
    try:
        plt = _pyplot()
        plt.switch_backend("Agg")
        ax = globals()[given.what](np.load(given.q), np.load(given.k), **options)
        ax.figure.savefig(given.output, dpi=120)
    except (ValueError, ImportError, OSError, MemoryError) as error:
        print(f"attn plot: {error}", file=sys.stderr)
        return 2
    return 0

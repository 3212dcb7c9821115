"""The pictures of the options, from results that libattn computes on small inputs.

A picture of probabilities is the output of attention where v is the identity: row i of o is then
row i of P. Nothing here knows a rule of visibility or a formula of a score.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import charts
import diagrams
from drawing import CELL, GREY, INK, ORANGE, Drawing, shade

if TYPE_CHECKING:
    import numpy as np

SIZE = 16


def probabilities(n: int = SIZE, m: int = SIZE, heads: int = 1, **options: Any) -> np.ndarray:
    """P [heads, n, m] of zero queries, or of `q` and `k` [n, dim], [m, dim]."""
    import libattn
    import numpy as np

    q = options.pop("q", np.zeros((n, 8), np.float32))
    k = options.pop("k", np.zeros((m, 8), np.float32))
    q, k = (np.repeat(x[None, :, None], heads, axis=2) for x in (q, k))
    v = np.repeat(np.eye(m, dtype=np.float32)[None, :, None], heads, axis=2)
    return libattn.attention(q, k, v, **options)[0].transpose(1, 0, 2)


def draw_p(p: np.ndarray, title: str, note: str = "", shaded: bool = False) -> Drawing:
    """One matrix with its axes. shaded: darker = more probable, else visible or hidden."""
    p = p.reshape(p.shape[-2:])
    n, m = p.shape
    most = p.max() if p.max() > 0 else 1.0
    wide = max(60 + m * CELL, 44 + 7.6 * len(title), 44 + 6 * len(note))
    drawing = Drawing(wide, 54 + n * CELL + (22 if note else 0), title)
    drawing.text(34, 18, title, bold=True, size=13)
    drawing.text(34, 38, "key j →", size=11, fill=GREY)
    if n > 3:
        middle = 44 + n * CELL / 2
        drawing.text(22, middle, "query i →", size=11, fill=GREY, anchor="middle", turn=True)

    def fill(i: int, j: int) -> str:
        value = p[i, j] / most if shaded else float(p[i, j] > 0)
        return shade(value)

    def tip(i: int, j: int) -> str:
        return f"query {i}, key {j}: p = {p[i, j]:.3f}"

    drawing.grid(34, 44, n, m, fill, tip=tip)
    if note:
        drawing.text(34, 62 + n * CELL, note, size=11, fill=GREY)
    return drawing


def full() -> Drawing:
    return draw_p(probabilities(), "attention(q, k, v)")


def causal() -> Drawing:
    return draw_p(probabilities(causal=True), "causal=True")


def causal_bottom_right() -> Drawing:
    return draw_p(probabilities(8, 14, causal=True), 'causal=True, diagonal="bottom_right"')


def causal_top_left() -> Drawing:
    p = probabilities(8, 14, causal=True, diagonal="top_left")
    return draw_p(p, 'causal=True, diagonal="top_left"')


def window() -> Drawing:
    return draw_p(probabilities(window=(3, 2)), "window=(3, 2)")


def window_causal() -> Drawing:
    return draw_p(probabilities(window=(4, 0)), "window=(4, 0)")


def documents() -> Drawing:
    import numpy as np

    starts = np.array([0] * 5 + [5] * 7 + [12] * 4, np.int32)[None]
    p = probabilities(causal=True, kv_begin=starts)
    return draw_p(p, "causal=True, kv_begin=[0 ... 5 ... 12 ...]")


def prefix() -> Drawing:
    import numpy as np

    end = np.maximum(np.arange(SIZE, dtype=np.int32) + 1, 6)[None]
    return draw_p(probabilities(kv_end=end), "kv_end=max(i + 1, 6)")


def mask() -> Drawing:
    import numpy as np

    i, j = np.arange(SIZE)[:, None], np.arange(SIZE)[None]
    visible = (abs(i - j) <= 1) | (j == 0) | (i == 0) | ((i * 7 + j * 3) % 11 == 0)
    return draw_p(probabilities(mask=visible), "mask=[n, m]")


def lengths() -> Drawing:
    import numpy as np

    p = probabilities(len_q=np.array([13], np.int32), len_kv=np.array([10], np.int32))
    return draw_p(p, "len_q=[13], len_kv=[10]", "rows past the length give o = 0, lse = -inf")


def vectors(n: int = SIZE, scale: float = 1.6) -> tuple[Any, Any]:
    import numpy as np

    rng = np.random.default_rng(3)
    q, k = scale * rng.standard_normal((2, n, 8)).astype(np.float32)
    return q, k


def scale() -> Drawing:
    q, k = vectors()
    left = probabilities(q=q, k=k)[0]
    right = probabilities(q=q, k=k, scale=0.05)[0]
    return side_by_side(("scale=None: 1/sqrt(dim)", left), ("scale=0.05", right))


def side_by_side(*parts: tuple[str, Any], shaded: bool = True) -> Drawing:
    drawings = [draw_p(p, title, shaded=shaded) for title, p in parts]
    total = Drawing(
        sum(d.size[0] for d in drawings),
        max(d.size[1] for d in drawings),
        ", ".join(d.title for d in drawings),
    )
    x = 0
    for drawing in drawings:
        total.parts.append(f'<g transform="translate({x} 0)">' + "".join(drawing.parts) + "</g>")
        x += drawing.size[0]
    return total


def alibi() -> Drawing:
    import numpy as np

    p = probabilities(heads=2, causal=True, alibi_slopes=np.array([0.5, 0.1], np.float32))
    return side_by_side(("slope 0.5", p[0]), ("slope 0.1", p[1]))


def bias() -> Drawing:
    import numpy as np

    i, j = np.arange(SIZE)[:, None], np.arange(SIZE)[None]
    added = np.where((i // 4) == (j // 4), 2.0, -0.1 * abs(i - j)).astype(np.float32)
    return draw_p(probabilities(bias=added)[0], "bias=[n, m] added to the scores", shaded=True)


def sinks() -> Drawing:
    """The probabilities of one row, and the share that goes to the sink."""
    import numpy as np

    q, k = vectors(8, 1.0)
    drawing = Drawing(430, 230, "Attention sinks")
    drawing.text(20, 20, "P of one query over 8 keys; orange: what the sink takes", bold=True)
    values = ((None, "no sink"), (0.0, "sinks=[0.0]"), (2.0, "sinks=[2.0]"))
    for row, (sink, name) in enumerate(values):
        more = {} if sink is None else {"sinks": np.array([sink], np.float32)}
        p = probabilities(1, 8, q=q[:1], k=k, **more)[0, 0]
        y = 48 + 58 * row
        drawing.text(20, y + 24, name, size=12, code=True)
        x = 130.0
        for j, share in enumerate(p):
            width = 280 * float(share)
            drawing.rect(x, y, max(width - 1, 0.2), 36, shade(1 - 0.09 * j), tip=f"p = {share:.3f}")
            x += width
        rest = 280 * float(1 - p.sum())
        if rest > 0.5:
            drawing.rect(x, y, rest, 36, ORANGE, tip=f"sink: {1 - p.sum():.3f}")
    return drawing


def softcap() -> Drawing:
    """The capped score as a function of the raw one: read back from lse of a single key."""
    import libattn
    import numpy as np

    raw = np.linspace(-100, 100, 81, dtype=np.float32)
    ones = np.ones((1, 1, 1, 1), np.float32)
    drawing = Drawing(440, 250, "softcap")
    x = lambda value: 220 + 1.9 * value  # noqa: E731
    y = lambda value: 130 - 1.05 * value  # noqa: E731
    drawing.line([(x(-105), y(0)), (x(105), y(0))], arrow=True)
    drawing.line([(x(0), y(-105)), (x(0), y(105))], arrow=True)
    drawing.text(x(104), y(-12), "raw score", size=11, fill=GREY, anchor="end")
    drawing.text(x(3), y(98), "score", size=11, fill=GREY)
    for cap, colour, label in ((None, GREY, "off"), (50.0, "#3b63c9", "50"), (20.0, ORANGE, "20")):
        points = []
        for value in raw:
            q = np.full((1, 1, 1, 1), value, np.float32)
            _, lse = libattn.attention(q, ones, ones, scale=1.0, softcap=cap, return_lse=True)
            points.append((x(float(value)), y(float(lse[0, 0, 0]))))
        drawing.line(points, colour, 2)
        drawing.text(x(101), points[-1][1] - 4, f"softcap={label}", 11, "end", colour, code=True)
    return drawing


def dropout() -> Drawing:
    p = probabilities(causal=True)[0]
    dropped = probabilities(causal=True, dropout_p=0.25, seed=7)[0]
    return side_by_side(("causal=True", p), ("dropout_p=0.25, seed=7", dropped))


def gqa() -> Drawing:
    drawing = Drawing(470, 150, "Grouped-query attention")
    drawing.text(
        20, 22, "8 query heads, 2 key heads: q [b, n, 8, d], k and v [b, m, 2, d]", bold=True
    )
    for h in range(8):
        g = h // 4
        colour = "#3b63c9" if g == 0 else ORANGE
        drawing.rect(
            20 + 54 * h, 40, 44, 30, shade(0.35, (59, 99, 201) if g == 0 else (217, 130, 43))
        )
        drawing.text(42 + 54 * h, 60, f"q {h}", 12, "middle")
        drawing.line([(42 + 54 * h, 72), (120 + 216 * g, 104)], colour)
    for g in range(2):
        fill = shade(0.75, (59, 99, 201) if g == 0 else (217, 130, 43))
        drawing.rect(75 + 216 * g, 106, 90, 30, fill)
        drawing.text(120 + 216 * g, 126, f"k, v {g}", 12, "middle", "#ffffff")
    return drawing


def rope() -> Drawing:
    """Scores of equal queries and equal keys after rotation: they depend on i - j alone."""
    import libattn
    import numpy as np

    x = np.tile(np.array([1.0, 0.0] * 16, np.float32), (SIZE, 1))[None, :, None]
    turned = libattn.rope(x, style="interleaved")[0, :, 0]
    scores = turned @ turned.T
    scores = (scores - scores.min()) / (scores.max() - scores.min())
    note = "equal vectors at 16 positions: the score falls with the distance"
    return draw_p(scores, "dot(rope(x)[i], rope(x)[j])", note, shaded=True)


def decode_window() -> Drawing:
    return draw_p(
        probabilities(2, SIZE, causal=True, window=(9, 0)), "2 new queries, window=(9, 0)"
    )


def skipped_tiles() -> Drawing:
    """Tiles of 4 x 4 of a causal window: full, partial, and skipped because no query sees them."""
    n, tile = 24, 4
    p = probabilities(n, n, window=(9, 0))[0] > 0
    drawing = Drawing(60 + n * CELL + 150, 60 + n * CELL, "Tiles that are skipped")
    drawing.text(34, 18, "window=(9, 0) in tiles of 4 x 4", bold=True, size=13)
    kinds = {"full tile": "#3b63c9", "partial tile": "#a9bdea", "skipped": "#eef1f5"}
    for ti in range(n // tile):
        for tj in range(n // tile):
            part = p[ti * tile : (ti + 1) * tile, tj * tile : (tj + 1) * tile]
            name = "full tile" if part.all() else "partial tile" if part.any() else "skipped"
            edge = tile * CELL
            x, y = 34 + tj * edge, 44 + ti * edge
            drawing.rect(x, y, edge - 2, edge - 2, kinds[name], tip=name)
            if name == "partial tile":
                drawing.grid(
                    x,
                    y,
                    tile,
                    tile,
                    lambda i, j, part=part: "#6f8fdc" if part[i, j] else "#dfe6f7",
                )
    for row, (name, colour) in enumerate(kinds.items()):
        y = 60 + 26 * row
        drawing.rect(50 + n * CELL, y, 16, 16, colour)
        drawing.text(74 + n * CELL, y + 13, name, fill=INK)
    return drawing


NAMES: dict[str, Callable[[], Drawing]] = {
    "full": full,
    "causal": causal,
    "causal_bottom_right": causal_bottom_right,
    "causal_top_left": causal_top_left,
    "window": window,
    "window_causal": window_causal,
    "documents": documents,
    "prefix": prefix,
    "mask": mask,
    "lengths": lengths,
    "scale": scale,
    "alibi": alibi,
    "bias": bias,
    "sinks": sinks,
    "softcap": softcap,
    "dropout": dropout,
    "gqa": gqa,
    "rope": rope,
    "decode_window": decode_window,
    "skipped_tiles": skipped_tiles,
    "error_ratios": charts.error_ratios,
    **diagrams.NAMES,
}

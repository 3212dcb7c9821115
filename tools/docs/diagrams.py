"""The pictures of the tutorial and of layouts: drawn, not computed."""

from __future__ import annotations

from collections.abc import Callable

from drawing import GREY, INK, ORANGE, PALE, Drawing, shade


def formula() -> Drawing:
    """S = Q K^T, P = softmax(S), O = P V, as matrices."""
    drawing = Drawing(720, 230, "The formula as matrices")

    def matrix(x: float, y: float, w: float, h: float, name: str, size: str, fill: str) -> None:
        drawing.rect(x, y, w, h, fill)
        drawing.text(x + w / 2, y + h / 2 + 5, name, 15, "middle", INK, bold=True)
        drawing.text(x + w / 2, y + h + 16, size, 11, "middle", GREY, code=True)

    blue, orange, pale = shade(0.35), shade(0.5, (217, 130, 43)), shade(0.15)
    matrix(20, 50, 50, 120, "Q", "[n, dim]", blue)
    drawing.text(82, 116, "×", 20)
    matrix(102, 85, 150, 50, "Kᵀ", "[dim, m]", blue)
    drawing.text(266, 116, "=", 20)
    matrix(290, 50, 150, 120, "S → P", "[n, m]: never stored", pale)
    drawing.text(454, 116, "×", 20)
    matrix(478, 35, 50, 150, "V", "[m, dim]", blue)
    drawing.text(542, 116, "=", 20)
    matrix(566, 50, 50, 120, "O", "[n, dim]", orange)
    drawing.text(20, 22, "softmax over each row of S gives P", 13, bold=True)
    return drawing


def online_softmax() -> Drawing:
    """Keys in tiles; (max, sum, acc) of a row go from tile to tile."""
    drawing = Drawing(720, 220, "Online softmax")
    drawing.text(
        20, 22, "One row of queries, keys in tiles: three values go from tile to tile", bold=True
    )
    for t in range(4):
        x = 40 + 165 * t
        drawing.rect(x, 45, 130, 40, shade(0.2 + 0.15 * t))
        drawing.text(x + 65, 70, f"keys {64 * t}..{64 * t + 63}", 12, "middle", code=True)
        drawing.line([(x + 65, 87), (x + 65, 117)], arrow=True)
        drawing.rect(x, 120, 130, 50, PALE, GREY)
        drawing.text(x + 65, 140, "row_max, row_sum", 11, "middle", code=True)
        drawing.text(x + 65, 158, "acc [dim]", 11, "middle", code=True)
        if t < 3:
            drawing.line([(x + 132, 145), (x + 163, 145)], arrow=True)
    drawing.text(205, 196, "× exp(old_max − new_max) where the maximum rises", 12, fill=GREY)
    drawing.text(700, 196, "o = acc / row_sum", 12, "end", code=True)
    return drawing


def tiles() -> Drawing:
    """A tile of rows, its strips, and the tile of keys that is in cache."""
    drawing = Drawing(720, 330, "Tiles, strips and caches")
    drawing.text(20, 22, "One task: 192 rows of queries against tiles of 64 keys", bold=True)
    for s in range(4):
        y = 120 + 48 * s
        drawing.rect(30, y, 90, 46, shade(0.55 if s == 0 else 0.25))
        drawing.text(75, y + 28, f"strip {s}", 12, "middle")
        drawing.rect(510, y, 90, 46, shade(0.6 if s == 0 else 0.3, (217, 130, 43)))
        drawing.text(555, y + 28, "acc", 12, "middle", code=True)
    for t in range(4):
        x = 170 + 78 * t
        drawing.rect(x, 42, 74, 58, shade(0.55 if t == 1 else 0.2, (47, 143, 91)))
        drawing.text(x + 37, 66, "Kᵀ, V", 12, "middle")
        drawing.text(x + 37, 84, f"tile {t}", 11, "middle", GREY)
    drawing.rect(248, 120, 74, 46, shade(0.9))
    drawing.text(285, 148, "S → P", 12, "middle", "#ffffff", bold=True)
    drawing.line([(122, 143), (244, 143)], arrow=True)
    drawing.line([(285, 102), (285, 118)], arrow=True)
    drawing.line([(324, 143), (506, 143)], arrow=True)
    drawing.text(415, 137, "acc += P V", 11, "middle", GREY, code=True)
    drawing.text(285, 186, "48 × 64 scores: L1", 11, "middle", GREY)
    drawing.text(490, 66, "one tile of keys: 16 KiB each, L2", 11, "start", GREY)
    drawing.text(75, 326, "q [48, dim] each", 11, "middle", GREY)
    drawing.text(555, 326, "f32, in L2", 11, "middle", GREY)
    return drawing


def merge() -> Drawing:
    """Partial results over disjoint keys into one."""
    drawing = Drawing(640, 190, "Merging partial results")
    drawing.text(20, 22, "Two sets of keys, two partial results, one merge", bold=True)
    for n, (name, x, colour) in enumerate((("A", 40, (59, 99, 201)), ("B", 220, (47, 143, 91)))):
        drawing.rect(x, 45, 150, 34, shade(0.4, colour))
        drawing.text(x + 75, 67, f"keys {name}", 12, "middle")
        drawing.line([(x + 75, 81), (x + 75, 104)], arrow=True)
        drawing.rect(x, 107, 150, 34, PALE, GREY)
        drawing.text(x + 75, 129, f"o{n + 1}, lse{n + 1}", 12, "middle", code=True)
        drawing.line(
            [(x + 150, 124), (424, 124)]
            if n
            else [(x + 75, 143), (115, 165), (470, 165), (470, 145)],
            arrow=True,
        )
    drawing.rect(428, 107, 180, 36, shade(0.5, (217, 130, 43)))
    drawing.text(518, 130, "merge → o, lse", 12, "middle", code=True)
    return drawing


def padded_packed() -> Drawing:
    """The same three sequences padded and packed."""
    drawing = Drawing(620, 270, "Padded and packed")
    lengths, colours = (9, 4, 6), ((59, 99, 201), (47, 143, 91), (217, 130, 43))
    drawing.text(20, 22, "padded: [3, 10, heads, dim], len_q = [9, 4, 6]", bold=True)
    for b, (length, colour) in enumerate(zip(lengths, colours, strict=True)):
        for i in range(10):
            fill = shade(0.55, colour) if i < length else PALE
            drawing.rect(20 + 28 * i, 36 + 30 * b, 26, 26, fill)
    drawing.text(310, 85, "pale: never read, written as zeros", 12, fill=GREY)
    drawing.text(20, 160, "packed: [19, heads, dim], cu_len_q = [0, 9, 13, 19]", bold=True)
    x = 20
    for length, colour in zip(lengths, colours, strict=True):
        drawing.text(x, 220, str((x - 20) // 28), 11, fill=GREY, code=True)
        for _ in range(length):
            drawing.rect(x, 174, 26, 26, shade(0.55, colour))
            x += 28
    drawing.text(x, 220, "19", 11, fill=GREY, code=True)
    return drawing


def pages() -> Drawing:
    """Key j of a sequence is row j % page_size of page block_table[b, j // page_size]."""
    drawing = Drawing(640, 250, "A paged cache")
    drawing.text(
        20, 22, "page_size 4: key j is row j % 4 of page block_table[b, j // 4]", bold=True
    )
    table, colours = ((5, 1, 3), (0, 4)), ((59, 99, 201), (217, 130, 43))
    owner = {page: b for b, row in enumerate(table) for page in row}
    for page in range(6):
        x = 250 + 62 * page
        drawing.text(x + 26, 52, f"page {page}", 11, "middle", GREY)
        colour = colours[owner[page]] if page in owner else None
        used = 4
        if page == 3:
            used = 2  # 10 keys of sequence 0
        if page == 4:
            used = 3  # 7 keys of sequence 1
        for row in range(4):
            fill = shade(0.6, colour) if colour and row < used else PALE
            drawing.rect(x, 60 + 28 * row, 52, 26, fill)
    for b, row in enumerate(table):
        y = 70 + 60 * b
        drawing.text(20, y + 18, f"sequence {b}", 12)
        for n, page in enumerate(row):
            drawing.rect(105 + 36 * n, y, 34, 28, shade(0.6, colours[b]))
            drawing.text(122 + 36 * n, y + 19, str(page), 12, "middle", "#ffffff", bold=True)
    drawing.text(105, 62, "block_table", 11, fill=GREY, code=True)
    drawing.text(
        20, 205, "len_kv = [10, 7]; page 2 is free; pale rows are never read", 12, fill=GREY
    )
    drawing.text(20, 228, "k_new, v_new go to rows len_kv[b], len_kv[b] + 1, ...", 12, fill=GREY)
    return drawing


def ring() -> Drawing:
    """Chunks of queries against chunks of keys, placed by origin."""
    drawing = Drawing(560, 290, "A chunk of a larger problem")
    drawing.text(20, 22, "A causal problem in chunks of 4 x 4 blocks", bold=True)
    for i in range(4):
        for j in range(4):
            x, y = 60 + 54 * j, 46 + 54 * i
            fill = shade(0.75) if j < i else shade(0.45) if i == j else PALE
            drawing.rect(x, y, 52, 52, fill)
            if i == j:
                drawing.text(x + 26, y + 31, "causal", 11, "middle")
            elif j < i:
                drawing.text(x + 26, y + 31, "full", 11, "middle", "#ffffff")
    drawing.rect(60 + 54, 46 + 108, 52, 52, "none", ORANGE, round_=2)
    drawing.line([(330, 120), (172, 178)], ORANGE, 1.5, arrow=True)
    drawing.text(335, 112, "Origin(q=2 * n, kv=1 * m)", 12, code=True)
    drawing.text(335, 130, 'diagonal="origin"', 12, code=True)
    drawing.text(335, 160, "The parts of a row of", 12, fill=GREY)
    drawing.text(335, 176, "chunks are merged by lse.", 12, fill=GREY)
    drawing.text(60 + 108, 282, "keys →", 11, "middle", GREY)
    drawing.text(46, 154, "queries →", 11, "middle", GREY, turn=True)
    return drawing


def split_keys() -> Drawing:
    """Decoding: the keys of one query over several workers."""
    drawing = Drawing(640, 190, "Splitting over keys")
    drawing.text(20, 22, "One query, many keys: each worker takes a chunk of keys", bold=True)
    for n in range(4):
        x = 40 + 145 * n
        drawing.rect(x, 46, 135, 30, shade(0.3 + 0.15 * n))
        drawing.text(x + 67, 66, f"chunk {n}", 12, "middle")
        drawing.line([(x + 67, 78), (x + 67, 98)], arrow=True)
        drawing.text(x + 67, 114, "o, lse", 12, "middle", code=True)
        drawing.line([(x + 67, 120), (320, 148)])
    drawing.rect(255, 148, 130, 30, shade(0.5, (217, 130, 43)))
    drawing.text(320, 168, "merge", 12, "middle", code=True)
    return drawing


def descales() -> Drawing:
    """8-bit keys: stored numbers times one factor for each head, or one for each row."""
    drawing = Drawing(640, 190, "Factors of 8-bit keys")
    for x, title, rows in ((20, "[batch, heads_kv]", 1), (350, "[batch, len_kv, heads_kv]", 6)):
        drawing.text(x, 22, title, 12, bold=True, code=True)
        for n in range(6):
            drawing.rect(x, 40 + 20 * n, 120, 17, shade(0.15 + 0.1 * (n % 3)))
        drawing.text(x + 60, 178, "k8: 1 byte", 11, "middle", GREY)
        drawing.text(x + 136, 104, "×", 20, "middle")
        for n in range(rows):
            height = 117 / rows - 3 * (rows > 1)
            drawing.rect(x + 154, 40 + 20 * n, 26, height, shade(0.5, (217, 130, 43)))
        drawing.text(x + 167, 178, "f32", 11, "middle", GREY)
        drawing.text(x + 200, 104, "= k", 15, bold=True)
    return drawing


def backward() -> Drawing:
    """The five products of the backward, for one tile of keys."""
    drawing = Drawing(720, 250, "The backward of a tile of keys")
    drawing.text(20, 22, "One tile of keys: five products, P recomputed from lse", bold=True)

    def box(x: float, y: float, text: str, product: bool) -> None:
        drawing.rect(x, y, 150, 40, shade(0.45) if product else PALE, "none" if product else GREY)
        drawing.text(x + 75, y + 25, text, 12, "middle", code=True)

    box(20, 60, "S = Q Kᵀ", True)
    box(20, 150, "dP = dO Vᵀ", True)
    box(210, 60, "P = exp(S - lse)", False)
    box(210, 150, "dS = P (dP - delta)", False)
    box(540, 60, "dV += Pᵀ dO", True)
    box(540, 125, "dK += dSᵀ Q", True)
    box(540, 190, "dQ += dS K", True)
    for points in (
        [(170, 80), (206, 80)],
        [(170, 170), (206, 170)],
        [(285, 100), (285, 146)],
        [(360, 80), (536, 80)],
        [(360, 165), (536, 147)],
        [(360, 175), (536, 208)],
    ):
        drawing.line(points, arrow=True)
    return drawing


NAMES: dict[str, Callable[[], Drawing]] = {
    "formula": formula,
    "online_softmax": online_softmax,
    "tiles": tiles,
    "merge": merge,
    "padded_packed": padded_packed,
    "pages": pages,
    "ring": ring,
    "split_keys": split_keys,
    "descales": descales,
    "backward": backward,
}

"""attention_weights: the probabilities of chosen rows, computed in float64 on the host.

Attention itself never stores them. Here the scores of the chosen rows alone are made, head by head.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from ._functions import described
from ._options import Options
from ._queries import supports
from ._types import Array, ArrayT, Indices
from ._values import integer, shown

if TYPE_CHECKING:
    from ._options import Unpack

_FUNCTION = "attention_weights"
LIMIT = 1 << 26  # elements: 256 MiB of float32
Floats = Any


def _refuse(rule: str, found: object, accepted: str) -> ValueError:
    return ValueError(f"{_FUNCTION}: {rule}: found {found}; accepted {accepted}")


def host(x: Any) -> Any:
    """An array of any maker as a NumPy array of float64, or of int64 where it has whole numbers."""
    if hasattr(x, "detach"):  # PyTorch; bfloat16 has no NumPy type
        x = x.detach()
        whole = not (x.is_floating_point() or x.is_complex())
        import torch

        return x.to(torch.int64 if whole else torch.float64).cpu().numpy()
    if hasattr(x, "get") and hasattr(x, "__cuda_array_interface__"):  # CuPy
        x = x.get()
    elif not isinstance(x, np.ndarray | list | tuple) and hasattr(x, "__dlpack__"):
        x = np.from_dlpack(x)
    array = np.asarray(x)
    return array.astype(np.int64 if array.dtype.kind in "iub" else np.float64)


def chosen(name: str, value: Any, size: int) -> list[int]:
    """Indices by an int, a slice, or an iterable of ints; None = all."""
    accepted = f"whole numbers from 0 to {size - 1}, one, several, or a slice"
    if value is None:
        return list(range(size))
    if isinstance(value, slice):
        return list(range(size))[value]
    if not isinstance(value, Iterable) or getattr(value, "ndim", 1) == 0:
        value = [value]
    try:
        found = [operator.index(one) for one in value]
    except TypeError:
        raise _refuse(name, shown(value), accepted) from None
    for one in found:
        if not 0 <= one < size:
            raise _refuse(name, one, accepted)
    return found


class Sequence(NamedTuple):
    """A sequence of the batch: its lengths and where it lies in packed tensors."""

    at: int
    len_q: int
    len_kv: int
    first_q: int
    first_kv: int
    diag: int


class Call:
    """Shapes and options of an attention call, its small arrays on the host."""

    def __init__(self, q: Any, k: Any, options: Mapping[str, Any]) -> None:
        self._validate(q, k, options)
        if options.get("dropout_p"):
            raise _refuse("dropout_p", options["dropout_p"], "0: weights are those without dropout")
        for name in ("descale_q", "descale_k", "descale_v"):
            if options.get(name) is not None:
                raise _refuse(name, "an array", "None: multiply q and k with it before the call")
        self.options = {name: x for name, x in options.items() if x is not None}
        self.packed = len(q.shape) == 3
        self.heads_q, self.heads_kv = int(q.shape[-2]), int(k.shape[-2])
        self.cuts = {name: host(options[name]) for name in ("cu_len_q", "cu_len_kv") if self.packed}
        self.batch = len(self.cuts["cu_len_q"]) - 1 if self.packed else int(q.shape[0])
        self.totals = int(q.shape[-3]), int(k.shape[-3])
        if not self.packed:
            self.len_q, self.len_kv = self.totals
            self._check_shapes()
        self.sequences = [self._sequence(at) for at in range(self.batch)]
        if self.packed:
            self.len_q, self.len_kv = self._longest(1), self._longest(2)
            self._check_shapes()
        self.small = {
            name: host(self.options[name])
            for name in ("kv_begin", "kv_end", "alibi_slopes", "sinks")
            if name in self.options
        }

    def _validate(self, q: Any, k: Any, options: Any) -> None:
        """The library's rules for a problem, and its shapes of options."""
        problem, _ = described(_FUNCTION, "forward", {"q": q, "k": k, "v": k}, options)
        try:
            supports(problem)
        except ValueError as error:
            raise ValueError(str(error).replace("supports", _FUNCTION, 1)) from None
        softcap, scale = options.get("softcap") or 0.0, options.get("scale") or 0.0
        if not (np.isfinite(float(softcap)) and float(softcap) >= 0):
            raise _refuse("softcap", softcap, "a finite number above 0, or 0 or None: off")
        if not np.isfinite(float(scale)):
            raise _refuse("scale", scale, "a finite number")

    def _check_shapes(self) -> None:
        b, h, n, m = self.batch, self.heads_q, self.len_q, self.len_kv
        if self.packed:
            n, m = (
                max(size, integer(name, self.options.get(name, 0)))
                for name, size in (("max_len_q", n), ("max_len_kv", m))
            )
        rows: list[tuple[int, ...]] = [(b, n), (1, n)]
        if self.packed:
            rows = [(self.totals[0],)]
        entries = {1, b, *(b // s for s in range(1, b + 1) if b % s == 0)}
        pairs = [tuple(sizes) for sizes in itertools.product(entries, (h, 1), (n, 1), (m, 1))]
        pairs += [tuple(sizes) for sizes in itertools.product((n, 1), (m, 1))]
        accepted: dict[str, list[tuple[int, ...]]] = {
            "mask": pairs,
            "bias": pairs,
            "kv_begin": rows,
            "kv_end": rows,
            "alibi_slopes": [(h,), (b, h)],
            "sinks": [(h,)],
            "len_q": [(b,)],
            "len_kv": [(b,)],
        }
        for name, shapes in accepted.items():
            x = self.options.get(name)
            shape = None if x is None else tuple(getattr(x, "shape", None) or np.shape(x))
            if shape is not None and shape not in shapes:
                found = " or ".join(map(str, shapes))
                if shapes is pairs:
                    found = f"[{b}|a divisor, {h}|1, {n}|1, {m}|1] or [{n}|1, {m}|1]"
                raise _refuse(f"shape of {name}", shape, found)

    def _longest(self, field: int) -> int:
        return max((one[field] for one in self.sequences), default=0)

    def _sequence(self, at: int) -> Sequence:
        lengths, firsts = [], []
        for which, name in enumerate(("len_q", "len_kv")):
            total = self.totals[which]
            if self.packed:
                begin, end = np.clip(self.cuts["cu_" + name][at : at + 2], 0, total)
                most = self.options.get("max_" + name)
                length = max(int(end - begin), 0)
                lengths.append(length if most is None else min(length, integer(name, most)))
                firsts.append(int(begin))
            else:
                given = self.options.get(name)
                lengths.append(total if given is None else int(np.clip(host(given)[at], 0, total)))
                firsts.append(0)
        diagonal = self.options.get("diagonal", "bottom_right")
        if diagonal == "bottom_right":
            diag = lengths[1] - lengths[0]
        elif diagonal == "origin":
            origin = self.options["origin"]
            diag = integer("origin.q", origin.q) - integer("origin.kv", origin.kv)
        else:
            diag = 0 if diagonal == "top_left" else integer("diagonal", diagonal)
        return Sequence(at, lengths[0], lengths[1], firsts[0], firsts[1], diag)

    def ranges(self, one: Sequence, rows: Any) -> tuple[Any, Any]:
        """The keys [first, last) that rows of a sequence see, mask and bias aside."""
        at = rows + one.diag
        first, last = np.zeros(len(rows), np.int64), np.full(len(rows), one.len_kv, np.int64)
        if self.options.get("causal"):
            last = np.minimum(last, at + 1)
        left, right = self.options.get("window") or (None, None)
        if left is not None:
            first = np.maximum(first, at - int(left))
        if right is not None:
            last = np.minimum(last, at + int(right) + 1)
        inside = np.minimum(rows, max(one.len_q - 1, 0))
        for name in ("kv_begin", "kv_end"):
            if name in self.small:
                bound = self._rows_of(self.small[name], one, inside)
                if name == "kv_begin":
                    first = np.maximum(first, bound)
                else:
                    last = np.minimum(last, bound)
        last = np.where(rows < one.len_q, np.maximum(first, last), first)
        return first, last

    def _rows_of(self, x: Any, one: Sequence, rows: Any) -> Any:
        """Values for rows of a sequence in an array [b|1, n] or packed [total]."""
        if x.ndim == 1:
            at = np.minimum(one.first_q + rows, max(len(x) - 1, 0))
            return x[at] if len(x) else np.zeros(len(rows), np.int64)
        return x[one.at if len(x) > 1 else 0][rows]

    def slopes_of(self, one: Sequence, head: int) -> float:
        slopes = self.small["alibi_slopes"]
        return float(slopes[head] if slopes.ndim == 1 else slopes[one.at, head])

    def pairs_of(self, name: str, one: Sequence, head: int, rows: Any) -> Any:
        """Rows of a mask or bias for one head: [rows|1, m|1]."""
        x = self.options[name]
        if len(x.shape) == 2:
            x = x[None, None]
        x = x[one.at * x.shape[0] // self.batch][head if x.shape[1] > 1 else 0]
        if x.shape[0] > 1:
            x = x[np.minimum(rows, x.shape[0] - 1)]
        x = host(x)
        return x if x.shape[1] == 1 else x[:, : one.len_kv]


def _rotated(x: Floats, positions: Any, rope: Any) -> Floats:
    """x [rows, dim] turned by the angles of positions [rows]."""
    half = (x.shape[1] if rope.rot_dim is None else int(rope.rot_dim)) // 2
    if rope.cos is None:
        angle = positions[:, None] * float(rope.base) ** (-np.arange(half) / half)
        cos, sin = np.cos(angle), np.sin(angle)
    else:
        cos, sin = (host(table) for table in (rope.cos, rope.sin))
        rows = np.clip(positions, 0, len(cos) - 1)
        cos, sin = cos[rows], sin[rows]
    pairs = slice(0, half), slice(half, 2 * half)
    if rope.style == "interleaved":
        pairs = slice(0, 2 * half, 2), slice(1, 2 * half, 2)
    turned = x.copy()
    turned[:, pairs[0]] = x[:, pairs[0]] * cos - x[:, pairs[1]] * sin
    turned[:, pairs[1]] = x[:, pairs[0]] * sin + x[:, pairs[1]] * cos
    return turned


def _part(x: Any, packed: bool, index: int, head: int, rows: Any) -> Floats:
    """Rows of one head as [rows, dim]."""
    x = x[:, head] if packed else x[index][:, head]
    return host(x[rows])


def _positions(call: Call, one: Sequence, rows: Any, of_q: bool) -> Any:
    rope = call.options["rope"]
    given = rope.positions_q if of_q else rope.positions_kv
    if given is None:
        return rows + (one.diag if of_q else 0) + int(rope.pos_offset)
    given = host(given)
    if given.ndim == 1:
        return given[(one.first_q if of_q else one.first_kv) + rows]
    return given[one.at if len(given) > 1 else 0][rows]


def _head(call: Call, q: Any, k: Any, one: Sequence, head: int, rows: Any) -> Floats:
    """The weights [rows, len_kv of the sequence] of rows inside of the sequence."""
    of_kv = head // (call.heads_q // call.heads_kv)
    keys = np.arange(one.len_kv)
    some_q = _part(q, call.packed, one.at, head, one.first_q + rows)
    some_k = _part(k, call.packed, one.at, of_kv, slice(one.first_kv, one.first_kv + len(keys)))
    take: Any = call.options.get
    if take("rope") is not None:
        some_q = _rotated(some_q, _positions(call, one, rows, True), take("rope"))
        some_k = _rotated(some_k, _positions(call, one, keys, False), take("rope"))
    scale = take("scale")
    scores = (some_q.shape[1] ** -0.5 if scale is None else float(scale)) * (some_q @ some_k.T)
    if take("softcap"):
        scores = float(take("softcap")) * np.tanh(scores / float(take("softcap")))
    if "alibi_slopes" in call.small:
        apart = np.abs(rows[:, None] + one.diag - keys)
        scores = scores - call.slopes_of(one, head) * apart
    if take("bias") is not None:
        scores = scores + call.pairs_of("bias", one, head, rows)
    first, last = call.ranges(one, rows)
    seen = (keys >= first[:, None]) & (keys < last[:, None])
    if take("mask") is not None:
        seen = seen & (call.pairs_of("mask", one, head, rows) != 0)
    scores = np.where(seen, scores, -np.inf)
    sink = call.small["sinks"][head] if "sinks" in call.small else -np.inf
    most = np.maximum(scores.max(-1, keepdims=True, initial=-np.inf), sink)
    most = np.where(np.isneginf(most), 0.0, most)
    with np.errstate(invalid="ignore"):  # a visible NaN or +inf makes the row NaN
        weights = np.exp(scores - most)
        total = weights.sum(-1, keepdims=True) + np.exp(sink - most)
    return np.where(seen, weights / np.where(total == 0, 1.0, total), 0.0)


def attention_weights(
    q: ArrayT,
    k: Array,
    *,
    rows: Indices,
    batch: Indices | None = None,
    heads: Indices | None = None,
    limit: int = LIMIT,
    **options: Unpack[Options],
) -> ArrayT:
    """The softmax weights p of chosen rows: o = p v before dropout (docs/semantics.md, Forward).

    For looking at attention, not for computing with it: float64 arithmetic on the host, from copies
    of the chosen rows of q and of k. Nothing of size n x m is made unless all rows are chosen.

    q, k: as for attention: [b, n, h, dim], [b, m, g, dim], or packed with cu_len_q, cu_len_kv.
    rows, batch, heads: which queries of a sequence, which sequences, which heads of q: a whole
    number, several, or a slice; None for batch and heads = all. slice(None) for rows = all.
    limit: the largest number of weights that a call returns.
    options: see libattn.Options. dropout_p is refused; a sink takes its share, so that rows sum to
    less than 1.

    Returns [batch, heads, rows, m] of the chosen ones in their order, float32 (float64 with
    float64), of the maker of q and on its device, without a gradient. Packed: m is the longest
    sequence of keys, with zeros past shorter ones. Rows past their sequence's length, and rows that
    see no key, are 0.
    Raises ValueError for a broken rule, an index out of range, and more weights than limit.
    """
    array: Any = q
    call = Call(q, k, options)
    in_rows = np.asarray(chosen("rows", rows, call.len_q), np.int64)
    in_batch = chosen("batch", batch, call.batch)
    in_heads = chosen("heads", heads, call.heads_q)
    shape = (len(in_batch), len(in_heads), len(in_rows), call.len_kv)
    if int(np.prod(shape, dtype=object)) > limit:
        accepted = f"at most limit={limit}: fewer rows, heads= or batch=, or a larger limit"
        raise _refuse("weights", f"{' x '.join(map(str, shape))}", accepted)
    wide = str(array.dtype).endswith("float64")
    found = np.zeros(shape, np.float64 if wide else np.float32)
    for at, index in enumerate(in_batch):
        one = call.sequences[index]
        inside = np.flatnonzero(in_rows < one.len_q)
        for head_at, head in enumerate(in_heads):
            weights = _head(call, q, k, one, head, in_rows[inside])
            found[at, head_at, inside, : one.len_kv] = weights
    result = cast(ArrayT, found)
    if hasattr(array, "detach"):
        import torch

        result = cast(ArrayT, torch.from_numpy(found).to(array.device))
    return result

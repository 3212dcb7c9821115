"""Arguments of the public functions: checked on this rank, compared among ranks, resolved.

Errors that one rank alone can find come before the comparison, so that all ranks learn of them.
What comes after depends on values that all ranks have compared, so that all raise the same error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from .. import Options, Origin
from .._facts import FLOATS
from .._options import VALUES, unknown
from ..torch import _attention as _torch
from ..torch import _checks
from . import _layout
from ._blocks import Band
from ._call import Call
from ._groups import Fact, Group, agree

_REFUSED = {
    "rope": "rotate q and k before the call: libattn.torch.rope(x, positions=...), with "
    "libattn.distributed.positions",
    "workspace": "scratch memory comes from PyTorch's allocator or libattn's pool",
    "stream": "the work goes to the current stream of the tensors' device",
    "device": "the tensors' device decides",
    "nonfinite_count": "there is no count over all ranks",
}
_TENSORS = (
    *("bias", "mask", "kv_begin", "kv_end", "len_q", "len_kv", "cu_len_q", "cu_len_kv"),
    *("alibi_slopes", "sinks", "descale_q", "descale_k", "descale_v"),
)
_GRADIENTS = ("q", "k", "v", "bias")
_DTYPES = tuple(getattr(torch, name) for name in FLOATS)
_NUMBERS = ("scale", "softcap", "dropout_p", "seed", "offset", "precision", "deterministic")


def refuse(function: str, rule: str, found: object, accepted: str) -> ValueError:
    return ValueError(f"{function}: {rule}: found {found}; accepted {accepted}")


@dataclass
class Arguments:
    """A call's arguments with the tensors as the engine takes them: [b, rows, heads, dim]."""

    function: str
    q: Tensor
    k: Tensor
    v: Tensor
    options: dict[str, Any]  # checked
    packed: bool
    out_dtype: torch.dtype

    def get(self, name: str, default: Any = None) -> Any:
        value = self.options.get(name)
        return default if value is None else value

    @property
    def positional(self) -> bool:
        """Whether the call depends on where a key lies relative to a query."""
        return bool(self.get("causal") or self.get("window", (None, None)) != (None, None)) or (
            "alibi_slopes" in self.options
        )


def check(function: str, q: Any, k: Any, v: Any, out_dtype: Any, options: Options) -> Arguments:
    """What this rank can check alone."""
    _torch._check_tensors(function, q, k, v)
    q, k, v = (_checks.tensor(function, name, x) for name, x in (("q", q), ("k", k), ("v", v)))
    given = _checked_options(function, q, dict(options))
    autocast = _torch._autocast_type(q)
    if autocast is not None:
        q, k, v = (_torch._cast(x, autocast) for x in (q, k, v))
    packed = q.dim() == 3
    if packed:
        q, k, v = (x[None] if x.dim() == 3 else x for x in (q, k, v))
    _check_shapes(function, q, k, v)
    out = _torch._out_dtype(function, out_dtype) or q.dtype
    if out not in (q.dtype, torch.float32) or (q.dtype == torch.float64 and out != q.dtype):
        raise refuse(function, "out_dtype", out, f"{q.dtype}, that of q, or torch.float32")
    arguments = Arguments(function, q, k, v, given, packed, out)
    _check_packed(arguments)
    _check_option_shapes(arguments)
    return arguments


def _checked_options(function: str, q: Tensor, options: dict[str, Any]) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for name, value in options.items():
        if value is None:
            continue
        if name in _REFUSED:
            raise refuse(function, name, "one", f"none: {_REFUSED[name]}")
        if name not in Options.__annotations__:
            raise unknown(function, name, set(Options.__annotations__) - set(_REFUSED))
        if name in ("bias", "mask"):
            given[name] = _collapsed(_torch._pairs(function, name, value))
        elif name in _TENSORS:
            value = _checks.integers(function, name, value, q)
            given[name] = value
        elif name in ("seed", "offset") and isinstance(value, Tensor):
            given[name] = _checks.counter(function, name, value, q)
        elif name in ("seed", "offset"):
            _checks.counter(function, name, value, q)
            given[name] = _checks.number_of(value)
        elif name in VALUES:
            given[name] = _checks.checked(function, VALUES[name], name, value)
        else:
            given[name] = value
    for name in ("alibi_slopes", "mask", "descale_q", "descale_k", "descale_v"):
        _checks.fixed(function, name, given.get(name))
    if torch.are_deterministic_algorithms_enabled():
        given["deterministic"] = True
    return given


def _collapsed(x: Tensor) -> Tensor:
    """Dimensions that are expanded from one element, as that element."""
    for dim in range(4):
        if x.size(dim) > 1 and x.stride(dim) == 0:
            x = x.narrow(dim, 0, 1)
    return x


def _check_shapes(function: str, q: Tensor, k: Tensor, v: Tensor) -> None:
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.dim() != 4:
            accepted = "[b, rows, heads, dim], or packed [rows, heads, dim]"
            raise refuse(function, f"shape of {name}", list(x.shape), accepted)
        if x.device != q.device:
            raise refuse(function, f"device of {name}", x.device, f"{q.device}, that of q")
        if x.size(3) > 1 and x.stride(3) != 1:
            raise refuse(function, f"stride of {name}'s last axis", x.stride(3), "1")
    want = (q.size(0), k.size(1), k.size(2))
    if k.size(0) != q.size(0) or tuple(v.shape[:3]) != want:
        found = f"q {list(q.shape)}, k {list(k.shape)}, v {list(v.shape)}"
        raise refuse(function, "shapes", found, "one batch, and one length and heads of k and v")
    if k.size(3) != q.size(3):
        raise refuse(function, "dim of k", k.size(3), f"{q.size(3)}, that of q")
    if q.size(2) == 0 or k.size(2) == 0 or q.size(2) % k.size(2):
        accepted = "heads of q that are a multiple of those of k"
        raise refuse(function, "heads", f"{q.size(2)} and {k.size(2)}", accepted)
    for name, x in (("k", k), ("v", v)):
        if x.dtype != q.dtype:
            raise refuse(function, f"type of {name}", x.dtype, f"{q.dtype}, that of q")
    if q.dtype not in _DTYPES:
        raise refuse(function, "type of q", q.dtype, ", ".join(map(str, _DTYPES)))


def _check_packed(a: Arguments) -> None:
    bounds = [a.options.pop(name, None) for name in ("cu_len_q", "cu_len_kv")]
    for name in ("max_len_q", "max_len_kv"):
        a.options.pop(name, None)
    if bounds == [None, None]:
        if a.packed:
            raise refuse(a.function, "q", "packed [rows, heads, dim]", "cu_len_q= and cu_len_kv=")
        return
    one, two = bounds
    if one is None or two is None or not (one is two or torch.equal(one, two)):
        raise refuse(
            a.function, "cu_len_q and cu_len_kv", "different ones", "the same: self-attention"
        )
    if one.dim() != 1 or one.numel() == 0:
        raise refuse(a.function, "shape of cu_len_q", list(one.shape), "[sequences + 1]")
    if not a.packed:
        raise refuse(a.function, "cu_len_q", "one with q [b, ...]", "packed q [rows, heads, dim]")
    for name in ("kv_begin", "kv_end", "len_q", "len_kv"):
        if name in a.options:
            raise refuse(a.function, name, "one with packed sequences", "none, or documents")
    a.options["cu_len"] = one


def _check_option_shapes(a: Arguments) -> None:
    batch, rows, heads = a.q.shape[:3]
    for name in ("kv_begin", "kv_end"):
        x = a.get(name)
        if x is not None and (x.dim() != 2 or x.size(0) not in (1, batch) or x.size(1) != rows):
            accepted = f"[1 or {batch}, {rows}]: one for each row of this rank"
            raise refuse(a.function, f"shape of {name}", list(x.shape), accepted)
    for name in ("len_q", "len_kv"):
        x = a.get(name)
        if x is not None and tuple(x.shape) != (batch,):
            raise refuse(a.function, f"shape of {name}", list(x.shape), f"[{batch}]")
    for name in ("mask", "bias"):
        x = a.get(name)
        if x is None:
            continue
        if "cu_len" in a.options:
            _check_packed_pairs(a, name, x)
            continue
        divides = x.size(0) >= 1 and batch % x.size(0) == 0
        if not divides or x.size(1) not in (1, heads) or x.size(2) not in (1, rows):
            accepted = f"[1 or {batch}, 1 or {heads}, 1 or {rows} rows of this rank, 1 or all keys]"
            raise refuse(a.function, f"shape of {name}", list(x.shape), accepted)
    if a.get("sinks") is not None and tuple(a.options["sinks"].shape) != (heads,):
        raise refuse(a.function, "shape of sinks", list(a.options["sinks"].shape), f"[{heads}]")
    slopes = a.get("alibi_slopes")
    if slopes is not None and tuple(slopes.shape) not in ((heads,), (batch, heads)):
        accepted = f"[{heads}] or [{batch}, {heads}]"
        raise refuse(a.function, "shape of alibi_slopes", list(slopes.shape), accepted)


def _check_packed_pairs(a: Arguments, name: str, x: Tensor) -> None:
    """Those of packed sequences are complete, indexed by rows of a sequence."""
    bounds = a.options["cu_len"]
    longest = int((bounds[1:] - bounds[:-1]).max()) if bounds.numel() > 1 else 0
    sequences, heads = bounds.numel() - 1, a.q.size(2)
    rows = all(size == 1 or size >= longest for size in x.shape[2:])
    if x.size(0) not in (1, sequences) or x.size(1) not in (1, heads) or not rows:
        accepted = f"[1 or {sequences}, 1 or {heads}, 1 or {longest}, 1 or {longest}] and larger"
        raise refuse(a.function, f"shape of {name}", list(x.shape), accepted)


def facts(a: Arguments, layout: str, rows: tuple[int, int] | None, draw: int | None) -> list[Fact]:
    """What the ranks compare. rows: those of q and of k, if this rank speaks for others too."""
    rows_q, rows_kv = rows or (a.q.size(1), a.k.size(1))
    q, k, v = a.q, a.k, a.v
    window = a.get("window", (None, None))
    origin = a.get("origin", Origin())
    diagonal = a.get("diagonal", "bottom_right")
    words = ("bottom_right", "top_left", "origin")
    given = [name for name in (*_TENSORS, "cu_len") if name in a.options]
    flags = {"q": q, "k": k, "v": v, "bias": a.get("bias")}
    grads = [n for n, x in flags.items() if x is not None and x.requires_grad]
    seed, offset = (a.get(name) for name in ("seed", "offset"))
    return [
        Fact("rows of q", rows_q, same=False),
        Fact("rows of k", rows_kv, same=False),
        Fact("layout", 1 << _layout.LAYOUTS.index(layout), names=_layout.LAYOUTS),
        Fact("batch", q.size(0)),
        Fact("heads of q", q.size(2)),
        Fact("heads of k", k.size(2)),
        Fact("dim of q", q.size(3)),
        Fact("dim of v", v.size(3)),
        Fact("type of q", 1 << _DTYPES.index(q.dtype), names=tuple(map(str, _DTYPES))),
        Fact("options given", _bits(given, (*_TENSORS, "cu_len")), names=(*_TENSORS, "cu_len")),
        Fact("tensors that require gradients", _bits(grads, _GRADIENTS), names=_GRADIENTS),
        Fact("causal", int(bool(a.get("causal")))),
        Fact("window", window[0]),
        Fact("window", window[1]),
        Fact(
            "diagonal",
            1 << words.index(diagonal) if isinstance(diagonal, str) else 8,
            names=(*words, "a number"),
        ),
        Fact("diagonal", None if isinstance(diagonal, str) else diagonal),
        Fact("softcap", float(a.get("softcap", 0.0))),
        Fact("scale", None if a.get("scale") is None else float(a.options["scale"])),
        Fact("dropout_p", float(a.get("dropout_p", 0.0))),
        Fact("seed", None if isinstance(seed, Tensor) else seed),
        Fact("offset", None if isinstance(offset, Tensor) else offset),
        *(
            Fact(f"origin.{name}", getattr(origin, name))
            for name in ("batch", "head", "q", "kv", "heads_q")
        ),
        *(
            Fact(f"keys of {n}", 1 if a.get(n) is None else a.options[n].size(3))
            for n in ("bias", "mask")
        ),
        Fact("deterministic", int(bool(a.get("deterministic")))),
        *(Fact(f"rows of {n}", _rows_of_pairs(a, n), same=False) for n in ("bias", "mask")),
        Fact("draw", _draw(a) if draw is None else draw, same=False),
    ]


_ONE, _EACH = 1, 2


def _rows_of_pairs(a: Arguments, name: str) -> int:
    """Whether a bias or mask has one row for all queries, or one for each; 0 where both may be."""
    x = a.get(name)
    if x is not None and "cu_len" in a.options:
        return _ONE  # complete on all ranks
    if x is None or (x.size(2) == 1 and a.q.size(1) == 1):
        return 0
    return _ONE if x.size(2) == 1 and a.q.size(1) != 1 else _EACH


def _draw(a: Arguments) -> int:
    """A seed for dropout without one: that of the first rank counts."""
    if not a.get("dropout_p") or a.get("seed") is not None:
        return 0
    return int(torch.randint(2**63 - 1, (1,)).item())


def _bits(found: Sequence[str], names: Sequence[str]) -> int:
    return sum(1 << names.index(name) for name in found)


@dataclass(frozen=True)
class Lengths:
    """Rows of q and of k that each rank of a group holds, and the seed that all ranks use."""

    q: tuple[int, ...]
    kv: tuple[int, ...]
    draw: int | None = None
    one_row: frozenset[str] = frozenset()  # bias and mask, where they have one row for all queries


def compare(
    function: str,
    group: Group,
    a: Arguments | None,
    layout: str,
    error: Exception | None,
    like: Tensor,
    inner: Lengths | None = None,
) -> Lengths:
    """Compares the call on all ranks of the group, or raises an error on all.

    inner: what a group that this rank speaks for has compared before.
    """
    rows = None if inner is None else (sum(inner.q), sum(inner.kv))
    mine = [] if a is None else facts(a, layout, rows, None if inner is None else inner.draw)
    found = agree(function, group, mine, like, error)
    one_row = set()
    for name in ("bias", "mask"):
        kinds = found[f"rows of {name}"]
        if _ONE in kinds and _EACH in kinds:
            one, each = kinds.index(_ONE), kinds.index(_EACH)
            found_rows = f"one on {group.name(one)}, one for each query on {group.name(each)}"
            raise refuse(function, f"rows of {name}", found_rows, "the same kind on all ranks")
        if _ONE in kinds:
            one_row.add(name)
    queries, keys = tuple(found["rows of q"]), tuple(found["rows of k"])
    return Lengths(queries, keys, found["draw"][0], frozenset(one_row))


def resolve(a: Arguments, group: Group, layout: str, lengths: Lengths) -> Call:
    """The call with global positions; errors are the same on all ranks."""
    function = a.function
    for name, rows in (("q", lengths.q), ("k", lengths.kv)):
        usual = _layout.rank_lengths(layout, sum(rows), group.size)
        if layout != "contiguous" and rows != usual:
            accepted = f"{usual} with layout {layout!r} (libattn.distributed.shard cuts so)"
            raise refuse(function, f"rows of {name} on the ranks", rows, accepted)
    keys = sum(lengths.kv)
    for name in ("bias", "mask"):
        x = a.get(name)
        if x is not None and "cu_len" not in a.options and x.size(3) not in (1, keys):
            raise refuse(
                function, f"keys of {name}", x.size(3), f"1, or {keys}: those of all ranks"
            )
    numbers = {name: a.options[name] for name in _NUMBERS if a.get(name) is not None}
    if numbers.get("dropout_p") == 0.0:
        del numbers["dropout_p"]
    if "dropout_p" not in numbers:
        numbers.pop("seed", None)
        numbers.pop("offset", None)
    elif numbers.get("seed") is None:
        if lengths.draw is None:
            raise refuse(function, "seed", "none with lengths=", "the same one on all ranks")
        numbers["seed"] = lengths.draw
    origin = a.get("origin", Origin())
    diag = _diagonal(a, lengths, origin) if a.positional else 0
    left, right = a.get("window", (None, None))
    if a.get("causal"):
        right = 0 if right is None else min(right, 0)
    band = Band(diag, left, right, a.get("alibi_slopes") is not None)
    tensors = {n: a.options[n] for n in _TENSORS if n in a.options and n not in ("bias", "sinks")}
    call = Call(group, layout, lengths.q, lengths.kv, band, numbers, tensors, origin)
    if "cu_len" in a.options:
        if lengths.q != lengths.kv:
            raise refuse(function, "rows of k on the ranks", lengths.kv, f"{lengths.q}, those of q")
        call = _packed(call, a)
    return call


def _packed(call: Call, a: Arguments) -> Call:
    """Packed sequences are documents of one row, unless something counts from their starts."""
    cu_len = a.options["cu_len"]
    call = call.with_options(span=cu_len[[0, -1]].to(a.q.device))
    if "dropout_p" not in call.numbers and a.get("bias") is None and a.get("mask") is None:
        return call.with_options(**_documents(call, cu_len, a.q.device))
    bounds = cu_len.long().clamp(0, sum(call.lengths_q)).cummax(0).values.tolist()
    return replace(call, cu_len=tuple(bounds))


def _diagonal(a: Arguments, lengths: Lengths, origin: Origin) -> int:
    diagonal = a.get("diagonal", "bottom_right")
    if diagonal == "origin":
        return origin.q - origin.kv
    if diagonal == "top_left":
        return 0
    if diagonal != "bottom_right":
        number: int = diagonal
        return number
    len_q, len_kv = a.get("len_q"), a.get("len_kv")
    if len_q is None and len_kv is None:
        return sum(lengths.kv) - sum(lengths.q)
    if len_q is None or len_kv is None or not (len_q is len_kv or torch.equal(len_q, len_kv)):
        accepted = "'top_left' or a number, or equal len_q and len_kv"
        found = "'bottom_right' with lengths that differ between sequences"
        raise refuse(a.function, "diagonal", found, accepted)
    return 0


def _documents(call: Call, cu_len: Tensor, device: torch.device) -> dict[str, Tensor]:
    """Packed sequences as documents of one row: kv_begin and kv_end, [1, rows of this rank]."""
    rows = _layout.indices(call.layout, call.lengths_q, call.group.rank).to(device)
    bounds = cu_len.to(device, torch.int64)
    at = torch.searchsorted(bounds, rows, right=True).clamp(1, bounds.numel() - 1)
    inside = (rows >= bounds[0]) & (rows < bounds[-1])
    begin, end = bounds[at - 1], bounds[at]
    return {
        "kv_begin": begin[None].to(torch.int32),
        "kv_end": torch.where(inside, end, begin)[None].to(torch.int32),
    }

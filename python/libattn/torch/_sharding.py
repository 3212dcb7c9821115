"""Attention on DTensors: which shardings need no communication, and the call of a rank.

Each dimension of the mesh splits sequences (batch) or heads, as q, k and v say, or neither. Heads
are split only where the key heads divide by the number of their ranks. Tensors that lie otherwise
are redistributed, plain tensors are the same on all ranks. A rank calls the library on its part, so
that gradients need one reduction alone: of bias and sinks that ranks share.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ._schema import BIAS, DESCALES, INDEX, SINKS, TENSORS, Flat

_MODULES = ("torch.distributed.tensor", "torch.distributed._tensor")  # 2.5 and later; 2.4
_PAIRS = (BIAS, INDEX["mask"])
_SLOPES = INDEX["alibi_slopes"]
_TABLES = (INDEX["rope_cos"], INDEX["rope_sin"], INDEX["seed"], INDEX["offset"])
_ORIGIN = INDEX["origin"] - TENSORS
_DROPOUT = INDEX["dropout_p"] - TENSORS
BATCH, HEADS, NEITHER = "batch", "heads", "neither"


def _module() -> Any:
    for name in _MODULES:
        module = sys.modules.get(name)
        if module is not None and hasattr(module, "DTensor"):
            return module
    return None


def is_sharded(*tensors: Any) -> bool:
    """Whether one of them is a DTensor; none can be one before its module was imported."""
    module = _module()
    return module is not None and any(isinstance(x, module.DTensor) for x in tensors)


def _refuse(rule: str, found: object, accepted: str) -> ValueError:
    return ValueError(f"attention: {rule}: found {found}; accepted {accepted}")


class _Split:
    """How a call is split: BATCH, HEADS or NEITHER for each dimension of the mesh."""

    def __init__(self, mesh: Any, q: Any, k: Any, v: Any) -> None:
        self.mesh = mesh
        self.packed = q.dim() == 3
        self.heads_q, self.heads_kv = q.size(-2), k.size(-2)
        self.batch = 1 if self.packed else q.size(0)
        kinds = [self._kind(at, (q, k, v)) for at in range(mesh.ndim)]
        ranks = math.prod(mesh.size(at) for at, kind in enumerate(kinds) if kind == HEADS)
        if self.heads_kv % ranks:
            kinds = [NEITHER if kind == HEADS else kind for kind in kinds]
        self.kinds = kinds

    def _kind(self, at: int, tensors: Any) -> str:
        for x in tensors:
            placement = x.placements[at] if hasattr(x, "placements") else None
            if placement is not None and placement.is_shard():
                dim = placement.dim % x.dim()
                if dim == x.dim() - 2:
                    return HEADS
                if dim == 0 and not self.packed:
                    return BATCH
        return NEITHER

    def placements(self, batch: int | None, heads: int | None, gradient: bool = False) -> list[Any]:
        """Those of a tensor with these dimensions. Without them its gradient is a sum."""
        module = _module()
        found = []
        for kind in self.kinds:
            dim = {BATCH: batch, HEADS: heads, NEITHER: None}[kind]
            if dim is not None:
                found.append(module.Shard(dim))
            elif gradient and kind != NEITHER:
                found.append(module.Partial())
            else:
                found.append(module.Replicate())
        return found

    def first(self, kind: str, size: int) -> int:
        """The first index of this rank's part of `size` sequences or heads."""
        begin = 0
        coordinate = self.mesh.get_coordinate()
        for at, one in enumerate(self.kinds):
            if one == kind:
                part = -(-size // self.mesh.size(at))
                step = min(part * coordinate[at], size)
                begin, size = begin + step, min(part, size - step)
        return begin

    def local(self, x: Any, batch: int | None, heads: int | None, learned: bool = False) -> Any:
        """This rank's part of x, with its gradient."""
        module = _module()
        if not isinstance(x, module.DTensor):
            whole = [module.Replicate()] * self.mesh.ndim
            x = module.DTensor.from_local(x, self.mesh, whole, run_check=False)
        elif x.device_mesh != self.mesh:
            raise _refuse("mesh of a DTensor", x.device_mesh, f"{self.mesh}, that of the first")
        x = x.redistribute(self.mesh, self.placements(batch, heads))
        return x.to_local(grad_placements=self.placements(batch, heads, gradient=learned))

    def _check_entries(self, entries: int) -> None:
        """Sequences that share an entry of a bias or mask must be on one rank."""
        ranks = math.prod(self.mesh.size(at) for at, kind in enumerate(self.kinds) if kind == BATCH)
        if entries not in (1, self.batch) and entries % ranks:
            accepted = f"1, {self.batch}, or a multiple of the {ranks} ranks that split the batch"
            raise _refuse("entries of a bias or mask", entries, accepted)

    def option(self, at: int, x: Any) -> Any:
        """This rank's part of a tensor among the options."""
        if x is None:
            return None
        batch = heads = None
        if at in _PAIRS:
            batch = 0 if x.size(0) > 1 else None
            self._check_entries(x.size(0))
            heads = 1 if x.size(1) == self.heads_q and x.size(1) > 1 else None
        elif at == SINKS:
            heads = 0
        elif at in DESCALES:
            batch, heads = (None if self.packed else 0), x.dim() - 1
        elif at == _SLOPES:
            batch, heads = (0 if x.dim() == 2 else None), x.dim() - 1
        elif at not in _TABLES and not self.packed and x.size(0) == self.batch:
            batch = 0
        return self.local(x, batch, heads, learned=at in (BIAS, SINKS))

    def result(self, x: Tensor, shape: tuple[int, ...], batch: int | None, heads: int) -> Any:
        strides = [math.prod(shape[at + 1 :]) for at in range(len(shape))]
        return _module().DTensor.from_local(
            x,
            self.mesh,
            self.placements(batch, heads),
            run_check=False,
            shape=torch.Size(shape),
            stride=tuple(strides),
        )


def attend(
    run: Callable[..., Any],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out_dtype: Any,
    tensors: Flat,
    numbers: Flat,
    return_lse: bool,
) -> Any:
    """(o, lse) as DTensors, where one of q, k, v or of the options is one."""
    module = _module()
    meshes = [x.device_mesh for x in (q, k, v, *tensors) if isinstance(x, module.DTensor)]
    split = _Split(meshes[0], q, k, v)
    heads = q.dim() - 2
    batch = None if split.packed else 0
    parts = [split.local(x, batch, heads) for x in (q, k, v)]
    options = tuple(split.option(at, x) for at, x in enumerate(tensors))
    if numbers[_DROPOUT]:
        numbers = _placed(split, numbers)
    o, lse = run(*parts, out_dtype, options, numbers, return_lse)
    shape = (*q.shape[:-1], v.size(-1))
    o = split.result(o, shape, batch, heads)
    if not return_lse:
        return o, None
    rows = (*q.shape[:-3], q.size(-2), q.size(-3))
    return o, split.result(lse, rows, batch, len(rows) - 2)


def _placed(split: _Split, numbers: Flat) -> Flat:
    """Dropout draws by the sequence and head of the unsplit call."""
    origin = list(numbers[_ORIGIN] or (0, 0, 0, 0, 0))
    origin[4] = origin[4] or split.heads_q
    origin[0] += split.first(BATCH, split.batch)
    origin[1] += split.first(HEADS, split.heads_q)
    return (*numbers[:_ORIGIN], tuple(origin), *numbers[_ORIGIN + 1 :])

"""Process groups: who is in one, and the check that all ranks make the same call.

A rank that refuses its arguments tells the others, so that all ranks raise an error in place of
waiting for messages that never come.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from .._values import shown

_NONE = -(1 << 63)
_REFUSED, _FINE = 1, 0
_WIDTH = 40  # numbers that each rank sends: status and facts; a rank that refuses has no facts


class TransportError(RuntimeError):
    """A message between ranks failed: another rank ended, or the timeout of the group passed."""


@dataclass(frozen=True)
class Group:
    """A process group and this rank's place in it. `handle` None: this process alone."""

    handle: Any
    rank: int
    size: int

    def name(self, rank: int) -> str:
        """A rank of the group in an error's text."""
        return f"rank {self.peer(rank)}"

    def peer(self, rank: int) -> int:
        """The global rank of a rank of the group."""
        return rank if self.handle is None else dist.get_global_rank(self.handle, rank)

    def device(self, like: Tensor) -> torch.device:
        """Where small messages live: in host memory, unless the backend knows devices alone."""
        if like.is_cuda and "gloo" not in dist.get_backend(self.handle):
            return like.device
        return torch.device("cpu")


ALONE = Group(None, 0, 1)


def group_of(function: str, group: Any) -> Group:
    """A ProcessGroup, a DeviceMesh of one dimension, or None for all processes."""
    if not dist.is_available() or not dist.is_initialized():
        raise ValueError(
            f"{function}: group: found no process group; accepted after "
            "torch.distributed.init_process_group"
        )
    if hasattr(group, "get_group") and hasattr(group, "ndim"):
        if group.ndim != 1:
            raise ValueError(
                f"{function}: group: found a DeviceMesh of {group.ndim} dimensions; accepted one "
                "dimension of it, mesh['name']"
            )
        group = group.get_group()
    if group is None:
        group = dist.group.WORLD
    if not isinstance(group, dist.ProcessGroup):
        raise ValueError(
            f"{function}: group: found {shown(group)}; accepted a ProcessGroup, a DeviceMesh of "
            "one dimension, or None"
        )
    return Group(group, dist.get_rank(group), dist.get_world_size(group))


def mesh_of(function: str, mesh: Any) -> tuple[Group, Group]:
    """The groups of a DeviceMesh of two dimensions, or of a tuple of two groups."""
    if isinstance(mesh, tuple | list) and len(mesh) == 2:
        return group_of(function, mesh[0]), group_of(function, mesh[1])
    if getattr(mesh, "ndim", 0) != 2 or not hasattr(mesh, "get_group"):
        raise ValueError(
            f"{function}: mesh: found {shown(mesh)}; accepted a DeviceMesh of two dimensions, or a "
            "tuple of two groups"
        )
    return group_of(function, mesh.get_group(0)), group_of(function, mesh.get_group(1))


def encode(value: Any) -> int:
    """A value as the int64 that ranks compare."""
    if value is None:
        return _NONE
    if isinstance(value, float):
        bits: int = struct.unpack("<q", struct.pack("<d", value))[0]
        return bits
    number = int(value)
    return number - (1 << 64) if number >= 1 << 63 else number


def _decode(like: Any, number: int, names: Sequence[str] | None) -> str:
    if names is not None:
        found = [name for at, name in enumerate(names) if number >> at & 1]
        return ", ".join(found) or "none"
    if number == _NONE:
        return "none"
    if isinstance(like, float):
        return repr(struct.unpack("<d", struct.pack("<q", number))[0])
    return str(number)


@dataclass(frozen=True)
class Fact:
    """One value of a call. `same`: all ranks must give it. `names`: of its bits, for errors."""

    name: str
    value: Any
    same: bool = True
    names: Sequence[str] | None = None


def gather(group: Group, values: Sequence[int], like: Tensor) -> list[list[int]]:
    """The values of all ranks of the group."""
    if group.size == 1:
        return [list(values)]
    mine = torch.tensor(list(values), dtype=torch.int64, device=group.device(like))
    all_ranks = [torch.empty_like(mine) for _ in range(group.size)]
    try:
        dist.all_gather(all_ranks, mine, group=group.handle)
    except RuntimeError as error:
        raise failed(group, "the check of the arguments", error) from error
    rows: list[list[int]] = torch.stack(all_ranks).cpu().tolist()
    return rows


def failed(group: Group, what: str, error: Exception) -> TransportError:
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    return TransportError(
        f"{group.name(group.rank)}: {what} failed: another rank ended, raised an error, or did not "
        f"make this call within the timeout of the group: {reason}"
    )


def agree(
    function: str, group: Group, facts: Sequence[Fact], like: Tensor, error: Exception | None
) -> dict[str, list[int]]:
    """The facts of all ranks by name. Raises on all ranks where one refuses its arguments (`error`)
    or a fact that must be the same is not."""
    values = [_FINE if error is None else _REFUSED, *(encode(fact.value) for fact in facts)]
    assert len(values) <= _WIDTH, "all ranks send as much, those that refuse too"
    values += [0] * (_WIDTH - len(values))
    rows = gather(group, values, like)
    if error is not None:
        raise error
    for rank, row in enumerate(rows):
        if row[0] == _REFUSED:
            raise ValueError(
                f"{function}: {group.name(rank)} refused its arguments: its error says which; "
                "accepted: arguments that are valid on all ranks"
            )
    for at, fact in enumerate(facts, 1):
        if not fact.same:
            continue
        for rank, row in enumerate(rows):
            if row[at] != rows[0][at]:
                found = _decode(fact.value, row[at], fact.names)
                accepted = _decode(fact.value, rows[0][at], fact.names)
                raise ValueError(
                    f"{function}: {fact.name}: found {found} on {group.name(rank)}; accepted "
                    f"{accepted}, as on {group.name(0)}"
                )
    return {fact.name: [row[at] for row in rows] for at, fact in enumerate(facts, 1)}

"""Messages between ranks: tensors packed into one buffer, sent and received in the background.

`traffic()` counts the bytes that this process sends and receives.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ._groups import Group, failed

_ALIGNMENT = 64  # bytes, of each tensor in a buffer: the widest load of a kernel


@dataclass
class Traffic:
    """Bytes that this process sent and received, by what they held.

    Kinds: "kv" (keys and values), "dkv" (their gradients), "exchange" (all-to-all) and "merge"
    (results of decode). The check of the arguments, below 1 KB a call, does not count.
    """

    sent: dict[str, int] = field(default_factory=dict)
    received: dict[str, int] = field(default_factory=dict)

    @property
    def sent_bytes(self) -> int:
        return sum(self.sent.values())

    @property
    def received_bytes(self) -> int:
        return sum(self.received.values())


_recording: list[Traffic] = []


@contextlib.contextmanager
def traffic() -> Iterator[Traffic]:
    """Counts the bytes that calls of libattn.distributed inside the block move.

    Backwards that run inside the block count too. Yields a Traffic.
    """
    record = Traffic()
    _recording.append(record)
    try:
        yield record
    finally:
        _recording.remove(record)


def count(kind: str, sent: int, received: int) -> None:
    for record in _recording:
        record.sent[kind] = record.sent.get(kind, 0) + sent
        record.received[kind] = record.received.get(kind, 0) + received


@dataclass(frozen=True)
class Form:
    """Shapes and types of the tensors in a buffer."""

    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[torch.dtype, ...]

    @property
    def sizes(self) -> list[int]:
        """Bytes of each tensor."""
        return [
            math.prod(shape) * dtype.itemsize
            for shape, dtype in zip(self.shapes, self.dtypes, strict=True)
        ]

    @property
    def bytes(self) -> int:
        """Size of the buffer; 0 where all tensors are empty."""
        *before, last = self.sizes
        if not any((*before, last)):
            return 0
        return sum(-(-size // _ALIGNMENT) * _ALIGNMENT for size in before) + last

    def empty(self, device: torch.device, zero: bool = False) -> Tensor:
        make = torch.zeros if zero else torch.empty
        return make(self.bytes, dtype=torch.uint8, device=device)

    def tensors(self, buffer: Tensor) -> list[Tensor]:
        """Views of the buffer."""
        found, at = [], 0
        for shape, dtype, size in zip(self.shapes, self.dtypes, self.sizes, strict=True):
            if size:
                found.append(buffer[at : at + size].view(dtype).view(shape))
            else:
                found.append(buffer.new_empty(shape, dtype=dtype))
            at += -(-size // _ALIGNMENT) * _ALIGNMENT
        return found

    def pack(self, tensors: Sequence[Tensor]) -> Tensor:
        buffer = self.empty(tensors[0].device)
        for place, x in zip(self.tensors(buffer), tensors, strict=True):
            place.copy_(x)
        return buffer


@dataclass(frozen=True)
class Message:
    """A buffer to send to, or to receive from, a rank of the group. `tag` orders messages between
    two ranks: it is what the message is, the same on both sides."""

    buffer: Tensor
    rank: int
    tag: int
    sends: bool


class Pending:
    """Messages under way; keeps their buffers alive."""

    def __init__(self, group: Group, kind: str, messages: list[Message]) -> None:
        self.group = group
        self.kind = kind
        # NCCL pairs the messages of two ranks by their order.
        self.messages = sorted((m for m in messages if m.buffer.numel()), key=lambda m: m.tag)
        self.works: list[Any] = []

    def start(self) -> Pending:
        operations = [
            dist.P2POp(
                dist.isend if m.sends else dist.irecv,
                m.buffer,
                self.group.peer(m.rank),
                self.group.handle,
                m.tag,
            )
            for m in self.messages
        ]
        if operations:
            try:
                self.works = dist.batch_isend_irecv(operations)
            except RuntimeError as error:
                raise self._failed(error) from error
        for m in self.messages:
            bytes_ = m.buffer.numel()
            count(self.kind, bytes_ if m.sends else 0, 0 if m.sends else bytes_)
        return self

    def wait(self) -> None:
        """Until all have arrived; on a GPU the current stream waits, not the host."""
        try:
            for work in self.works:
                work.wait()
        except RuntimeError as error:
            raise self._failed(error) from error
        self.works, self.messages = [], []  # frees the buffers

    def _failed(self, error: Exception) -> Exception:
        what = {"kv": "keys and values", "dkv": "gradients of keys and values"}[self.kind]
        places = sorted(
            f"{'to' if m.sends else 'from'} {self.group.name(m.rank)}" for m in self.messages
        )
        return failed(self.group, f"sending {what} {', '.join(places)}", error)


def start(group: Group, kind: str, messages: list[Message]) -> Pending:
    """Starts the messages in the background."""
    return Pending(group, kind, messages).start()


def exchange(group: Group, outgoing: Tensor, sent: list[int], received: list[int]) -> Tensor:
    """All-to-all of bytes: sent[r] of `outgoing` (u8) go to rank r, received[r] come from it."""
    incoming = outgoing.new_empty(sum(received))
    mine = group.rank
    count("exchange", sum(sent) - sent[mine], sum(received) - received[mine])
    try:
        dist.all_to_all_single(incoming, outgoing, received, sent, group=group.handle)
    except RuntimeError as error:
        raise failed(group, "the exchange of heads and rows", error) from error
    return incoming

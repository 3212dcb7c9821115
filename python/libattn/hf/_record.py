"""What the attention layers of a model asked libattn for, call by call.

`record` is there to see that every layer of a model runs libattn and that no mask of
len_q x len_kv elements was made for it. Without a `record` around a call nothing is kept.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class Call:
    """One attention call of one layer, noted after the library has run it.

    layer: the module's layer_idx, None where it has none. module: its class. operation:
    "attention" or "decode". mask: "none", "intervals" (kv_begin and kv_end), "intervals and keys"
    (and one flag a key), "mask" or "bias" (a 4-D mask as it came). mask_elements: of the mask that
    arrived. batch, len_q, len_kv: of the call.
    """

    layer: int | None
    module: str
    operation: str
    mask: str
    mask_elements: int
    batch: int
    len_q: int
    len_kv: int


_lock = threading.Lock()
_recorders: tuple[list[Call], ...] = ()


@contextmanager
def record() -> Iterator[list[Call]]:
    """`with record() as calls:` collects the calls of every thread of the process, in order."""
    global _recorders
    calls: list[Call] = []
    with _lock:
        _recorders = (*_recorders, calls)
    try:
        yield calls
    finally:
        with _lock:
            _recorders = tuple(kept for kept in _recorders if kept is not calls)


def recording() -> bool:
    """Whether anybody listens."""
    return bool(_recorders)


def note(call: Call) -> None:
    """Hands a call to everybody who listens."""
    for calls in _recorders:
        calls.append(call)

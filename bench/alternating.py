"""Timing of short calls, for the scripts that measure what a call costs on the host."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

BATCH = 10


def best_of(functions: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Microseconds per call: the minimum over `rounds` batches; the functions alternate."""
    best = dict.fromkeys(functions, math.inf)
    for function in functions.values():
        for _ in range(5 * BATCH):
            function()
    for _ in range(rounds):
        for name, function in functions.items():
            function()  # brings its code and data back into the caches
            start = time.perf_counter()
            for _ in range(BATCH):
                function()
            best[name] = min(best[name], (time.perf_counter() - start) / BATCH * 1e6)
    return best

"""Times calls on PyTorch's device and reads the clock of its SMs while they run."""

from __future__ import annotations

import ctypes
import statistics
import time

import torch
from torch_contenders import Call, Contender

ROUNDS = 3
QUEUE_AHEAD = 0.0015  # minimum seconds that the device waits while the host queues calls
CYCLES_PER_SECOND = 2e9  # upper limit of the SM clock of today's GPUs
CLOCK_SM = 1  # NVML_CLOCK_SM of nvml.h
CLOCK_PERIOD = 0.005  # seconds between two readings


class SmClock:
    """Reads the SM clock of the current CUDA device through NVML, in MHz."""

    def __init__(self) -> None:
        self.nvml: ctypes.CDLL | None = None
        self.device = ctypes.c_void_p()
        if not torch.cuda.is_available():
            return
        try:
            nvml = ctypes.CDLL("libnvidia-ml.so.1")
            uuid = f"GPU-{torch.cuda.get_device_properties().uuid}".encode()
            at = ctypes.byref(self.device)
            if nvml.nvmlInit_v2() == 0 and nvml.nvmlDeviceGetHandleByUUID(uuid, at) == 0:
                self.nvml = nvml
        except (OSError, AttributeError):
            pass  # rows are then without clocks

    def read(self) -> int | None:
        mhz = ctypes.c_uint()
        if self.nvml is None:
            return None
        failed = self.nvml.nvmlDeviceGetClockInfo(self.device, CLOCK_SM, ctypes.byref(mhz))
        return None if failed else mhz.value


class Clock:
    """Times calls with events on a GPU and with the host's clock on a CPU."""

    def __init__(self, device: str) -> None:
        self.cuda = device == "cuda"
        self.sm = SmClock() if self.cuda else None
        self.host = 0.0  # host seconds to queue one call, in the last sample

    def wait(self) -> None:
        if self.cuda:
            torch.cuda.synchronize()

    def sample(
        self, calls: list[Call], count: int, clocks: list[int] | None = None, host: float = 0.0
    ) -> list[float]:
        """Seconds of `count` calls, rotating over the sets. The device waits until the host has
        queued all calls, which is estimated to take `host` seconds per call. Otherwise the times of
        short calls would include host time. Appends readings of the SM clock, taken while the calls
        run, to `clocks`."""
        if not self.cuda:
            found = []
            for at in range(count):
                start = time.perf_counter()
                calls[at % len(calls)]()
                found.append(time.perf_counter() - start)
            return found
        events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(count)]
        torch.cuda._sleep(int(max(QUEUE_AHEAD, count * host) * CYCLES_PER_SECOND))
        began = time.perf_counter()
        for at, (start, end) in enumerate(events):
            start.record()
            calls[at % len(calls)]()
            end.record()
        self.host = (time.perf_counter() - began) / count
        while clocks is not None and self.sm is not None and not events[-1][1].query():
            mhz = self.sm.read() if events[0][0].query() else None
            clocks += [] if mhz is None else [mhz]
            time.sleep(CLOCK_PERIOD)
        torch.cuda.synchronize()
        return [start.elapsed_time(end) * 1e-3 for start, end in events]


def measure(
    clock: Clock, contenders: dict[str, tuple[Contender, list[Call]]], seconds: float
) -> tuple[dict[str, float], dict[str, float]]:
    """Each contender's median seconds per call, and the median SM clock in MHz of those that ran
    long enough for a reading. The contenders alternate."""
    counts, hosts = {}, {}
    for name, (contender, calls) in contenders.items():
        with contender.turn():
            clock.sample(calls, len(calls))  # warm
            once = statistics.median(clock.sample(calls, 3))
        hosts[name] = clock.host
        counts[name] = min(max(5, round(seconds / ROUNDS / once)), 300)
    found: dict[str, list[float]] = {name: [] for name in contenders}
    clocks: dict[str, list[int]] = {name: [] for name in contenders}
    for _ in range(ROUNDS):
        for name, (contender, calls) in contenders.items():
            with contender.turn():
                found[name] += clock.sample(calls, counts[name], clocks[name], hosts[name])
    times = {name: statistics.median(times) for name, times in found.items()}
    return times, {name: statistics.median(mhz) for name, mhz in clocks.items() if mhz}

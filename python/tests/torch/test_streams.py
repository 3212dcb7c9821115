"""Conversions of tensors run on the stream of the call. No device is needed."""

from __future__ import annotations

import contextlib

import pytest
import torch
from libattn import _convert
from torch.overrides import TorchFunctionMode

CONVERSIONS = ("clamp", "to", "contiguous")


class OnCuda(torch.Tensor):
    """A tensor in host memory that says it is on a device."""

    device = torch.device("cuda", 0)


class Recorder(TorchFunctionMode):
    """Notes conversions and the stream that is current."""

    def __init__(self):
        super().__init__()
        self.streams = ["the current one"]
        self.seen = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function.__name__ in CONVERSIONS:
            self.seen.append((function.__name__, self.streams[-1]))
        return function(*args, **(kwargs or {}))

    @contextlib.contextmanager
    def stream(self, stream):
        self.streams.append(stream)
        yield
        self.streams.pop()


@pytest.fixture
def recorder(monkeypatch):
    made = Recorder()
    monkeypatch.setattr(torch.cuda, "stream", made.stream)
    monkeypatch.setattr(torch.cuda, "default_stream", lambda device: f"default of {device}")
    monkeypatch.setattr(
        torch.cuda, "ExternalStream", lambda address, device: f"{address} of {device}"
    )
    return made


@pytest.mark.parametrize(
    ("device", "stream", "expected"),
    (
        ("cuda", None, "the current one"),
        ("cuda", 4660, "4660 of cuda:0"),
        ("cuda", 0, "default of cuda:0"),
        ("cuda", 1, "default of cuda:0"),
        ("cpu", 4660, "the current one"),
    ),
)
def test_conversions_run_on_the_stream_of_the_call(recorder, device, stream, expected):
    begin = torch.ones(2, 5, dtype=torch.int64)
    mask = torch.ones(7, 5, dtype=torch.bool).T
    arrays = {"kv_begin": begin, "mask": mask}
    if device == "cuda":
        arrays = {name: x.as_subclass(OnCuda) for name, x in arrays.items()}
    with recorder:
        _convert.convert(arrays, arrays["mask"], stream)
    assert arrays["mask"].shape == (1, 1, 5, 7) and arrays["mask"].stride(-1) == 1
    assert arrays["kv_begin"].dtype == torch.int32
    names = CONVERSIONS if device == "cuda" else ("to", "contiguous")
    assert recorder.seen == [(name, expected) for name in names]
    assert recorder.streams == ["the current one"]

"""CUDA arrays as the package sees them. The array classes are defined here: no device is needed.

The tests check which stream each array's producer receives, and what is read of an array.
"""

import ctypes
import gc
import sys
import types

import libattn
import numpy as np
import pytest
from libattn import _abi, _arrays, _calls, _convert, _dlpack, _library

ADDRESS = 0x7F00_0000_0000
SHAPE = (2, 3, 4, 8)


class Exporter:
    """A CUDA array that only speaks DLPack; it notes the streams that it is asked to make wait."""

    def __init__(self, shape=SHAPE, device_type=2, ordinal=1):
        self.device = (device_type, ordinal)
        self.streams = []
        self.extents = (ctypes.c_int64 * len(shape))(*shape)
        self.tensor = _dlpack._DLTensor(
            ADDRESS, device_type, ordinal, len(shape), 2, 16, 1, self.extents, None, 64
        )

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, stream=None):
        self.streams.append(stream)
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = (
            ctypes.py_object,
            [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p],
        )
        return new(ctypes.addressof(self.tensor), b"dltensor", None)


class Interface:
    """An array that only speaks __cuda_array_interface__, made on a stream (None: nothing to wait
    for)."""

    def __init__(self, stream):
        self.made_on = stream

    @property
    def __cuda_array_interface__(self):
        data = (ADDRESS, False)
        facts = {"shape": SHAPE, "typestr": "<f2", "data": data, "version": 3}
        return facts | {"stream": self.made_on}


@pytest.mark.parametrize(
    ("given", "asked"), (({}, 1), ({"stream": 0}, 1), ({"stream": 2}, 2), ({"stream": 4660}, 4660))
)
def test_dlpack_is_asked_for_the_stream_of_the_call(given, asked):
    arrays = {"q": Exporter(), "k": Exporter()}
    makers = dict(arrays)
    _, stream = _calls.settle(arrays, given, "q")
    assert stream == given.get("stream")
    assert [x.streams for x in makers.values()] == [[asked], [asked]]
    facts = arrays["q"].facts
    assert facts == (_abi.ATTN_F16, _abi.ATTN_CUDA, 1, SHAPE, (96, 32, 8, 1))
    assert arrays["q"].address == ADDRESS + 64


def test_managed_memory_is_the_devices_and_pinned_memory_the_hosts():
    managed, pinned = Exporter(device_type=13), Exporter(device_type=3)
    arrays = {"q": managed, "k": pinned}
    _calls.settle(arrays, {}, "q")
    assert (managed.streams, pinned.streams) == ([1], [None])
    assert arrays["q"].facts.device == _abi.ATTN_CUDA
    assert arrays["k"].facts.device == _abi.ATTN_HOST


def test_an_array_is_opened_once_and_not_before_the_stream_is_known():
    q, k, v, out, workspace = (Exporter() for _ in range(5))
    lengths = Exporter((2,))
    # The call fails: there is no GPU, or the address is not on it. Only the streams matter here.
    with pytest.raises((libattn.Error, ValueError)):
        libattn.attention(q, k, v, out=out, len_kv=lengths, workspace=workspace, stream=4660)
    assert [x.streams for x in (q, k, v, out, lengths)] == [[4660]] * 5
    assert workspace.streams in ([], [4660])


def test_the_stream_of_the_cuda_interface_is_the_calls():
    family = _arrays.CUDA_INTERFACE
    arrays = {"q": Interface(7), "k": Interface(7), "v": Interface(None)}
    assert _calls.settle(arrays, {}, "q") == ([family] * 3, 7)
    arrays = {"q": Interface(None), "k": Interface(1)}
    assert _calls.settle(arrays, {}, "q")[1] is None


@pytest.mark.parametrize("first", (None, 7))
def test_arrays_of_two_streams_are_refused(first):
    arrays = {"q": Interface(first), "k": Interface(9)}
    with pytest.raises(ValueError, match=r"k: stream: found .* stream 0x9, .*accepted"):
        _calls.settle(arrays, {}, "q")
    assert _calls.settle(arrays, {"stream": 11}, "q")[1] == 11


class FakeCupy(types.ModuleType):
    """The part of CuPy that the package uses, on host memory: arrays on device 1, and one current
    stream per device."""

    class ndarray:  # noqa: N801 (CuPy's name)
        def __init__(self, values):
            self.values = values
            self.dtype, self.shape, self.strides = values.dtype, values.shape, values.strides
            self.data = types.SimpleNamespace(ptr=values.ctypes.data)
            self.device = FakeCupy.Device(1)

        def clip(self, least, most):
            FakeCupy.converted_on.append((FakeCupy.Device.current, FakeCupy.external))
            return FakeCupy.ndarray(self.values.clip(least, most))

        def astype(self, dtype):
            return FakeCupy.ndarray(self.values.astype(dtype))

    class Device:
        current = 0

        def __init__(self, ordinal):
            self.id = ordinal

        def __enter__(self):
            self.before, FakeCupy.Device.current = FakeCupy.Device.current, self.id

        def __exit__(self, *error):
            FakeCupy.Device.current = self.before

    external = None  # the stream of ExternalStream that is current
    converted_on: list[tuple[int, int | None]] = []

    class ExternalStream:
        def __init__(self, address):
            self.address = address

        def __enter__(self):
            FakeCupy.external = self.address

        def __exit__(self, *error):
            FakeCupy.external = None

    def __init__(self):
        super().__init__("cupy")
        FakeCupy.converted_on = []
        self.cuda = types.SimpleNamespace(
            ExternalStream=self.ExternalStream,
            get_current_stream=lambda: types.SimpleNamespace(ptr=100 + FakeCupy.Device.current),
        )

    def empty(self, shape, dtype):
        assert FakeCupy.Device.current == 1
        return self.ndarray(np.empty(shape, dtype))


@pytest.fixture
def cupy(monkeypatch):
    module = FakeCupy()
    monkeypatch.setitem(sys.modules, "cupy", module)
    monkeypatch.setattr(_arrays, "_cupy", None)
    yield module
    _arrays._by_type.pop(module.ndarray, None)


def test_cupy_is_a_maker_with_streams_and_memory(cupy):
    values = np.zeros((2, 6, 4, 8), np.float16)[:, ::2]
    x = cupy.ndarray(values)
    family = _arrays.family_of("q", x)
    assert isinstance(family, _arrays.CupyFamily)
    assert family.facts("q", x) == (_abi.ATTN_F16, _abi.ATTN_CUDA, 1, SHAPE, (192, 64, 8, 1))
    assert family.pointer("q", x) == values.ctypes.data
    assert family.stream(x) == 101
    made = family.empty(x, (3, 5), _abi.ATTN_F32)
    assert (made.shape, made.dtype) == ((3, 5), np.float32)
    assert family.scratch(x, 12).shape == (12,)
    assert FakeCupy.Device.current == 0


def test_a_maker_without_memory_leaves_scratch_to_the_library():
    assert _arrays.CAPSULES.scratch(_arrays.Capsule("q", Exporter()), 64) is None
    assert _arrays.CUDA_INTERFACE.scratch(Interface(None), 64) is None
    with pytest.raises(ValueError, match="out: found none.*Exporter"):
        _arrays.CAPSULES.empty(_arrays.Capsule("q", Exporter()), (1,), _abi.ATTN_F16)


@pytest.fixture
def calls(monkeypatch):
    """The arguments of each attn_forward, which is not made; every call wants 4096 bytes."""
    seen = []

    def workspace_bytes(context, pass_, problem, device, needed):
        assert device == _abi.ATTN_CUDA
        needed._obj.value = 4096
        return _abi.ATTN_OK

    def forward(context, problem, arguments):
        a = _abi.attn_arguments.from_address(arguments)
        fields = ("stream", "has_stream", "workspace", "workspace_size")
        seen.append({name: getattr(a, name) for name in fields})
        return _abi.ATTN_OK

    monkeypatch.setattr(_calls.LIBRARY, "attn_workspace_bytes", workspace_bytes)
    monkeypatch.setattr(_calls.LIBRARY, "attn_forward", forward)
    monkeypatch.setattr(_calls, "_idle", {})
    return seen


def test_a_call_takes_stream_and_scratch_of_the_maker_of_q(cupy, calls):
    x = cupy.ndarray(np.zeros(SHAPE, np.float16))
    o = libattn.attention(x, x, x)
    assert isinstance(o, cupy.ndarray) and o.shape == SHAPE
    libattn.attention(x, x, x, stream=4660)
    workspace = cupy.ndarray(np.empty(5000, np.uint8))
    libattn.attention(x, x, x, workspace=workspace)
    libattn.attention(x, x, x)
    usual, elsewhere, given, again = calls
    assert (usual["stream"], usual["has_stream"], usual["workspace_size"]) == (101, 1, 4096)
    assert usual["workspace"]
    # CuPy's pool could reuse a workspace on CuPy's stream while the call still runs on another one.
    assert elsewhere == {"stream": 4660, "has_stream": 1, "workspace": None, "workspace_size": 0}
    assert (given["stream"], given["workspace_size"]) == (101, 5000)
    assert given["workspace"] == workspace.data.ptr
    assert again["workspace_size"] == 4096


def test_indices_are_converted_on_the_stream_of_the_call(cupy, calls):
    x = cupy.ndarray(np.zeros(SHAPE, np.float16))
    lengths = cupy.ndarray(np.array([2, 3]))
    libattn.attention(x, x, x, len_kv=lengths)
    libattn.attention(x, x, x, len_kv=lengths, stream=4660)
    positions = cupy.ndarray(np.zeros(SHAPE[:2], np.int64))
    arrays = {"x": x, "positions": positions}
    _convert.convert(arrays, x, 7)
    assert arrays["positions"].dtype == np.int32
    assert FakeCupy.converted_on == [(0, None), (1, 4660), (1, 7)]
    assert [c["stream"] for c in calls] == [101, 4660]


def test_the_context_of_a_question_about_memory_lives_as_long_as_it(cupy, calls, monkeypatch):
    destroyed = []
    ask = _calls.LIBRARY.attn_workspace_bytes
    destroy = _calls.LIBRARY.attn_context_destroy

    def noted(handle):
        destroyed.append(handle.value)
        destroy(handle)

    def interrupted(handle, *arguments):
        destroyed.clear()
        _library._contexts.clear()  # as another thread can do
        gc.collect()
        assert handle.value not in destroyed
        return ask(handle, *arguments)

    monkeypatch.setattr(_library, "_contexts", {})
    monkeypatch.setattr(_calls.LIBRARY, "attn_context_destroy", noted)
    monkeypatch.setattr(_calls.LIBRARY, "attn_workspace_bytes", interrupted)
    x = cupy.ndarray(np.zeros(SHAPE, np.float16))
    libattn.attention(x, x, x)
    assert len(calls) == 1


def test_a_stream_of_an_earlier_call_is_forgotten(cupy, calls):
    """Calls of one kind reuse their structures, which must not keep an earlier call's stream."""
    out = cupy.ndarray(np.empty(SHAPE, np.float16))
    for stream in (7, None, 0x123):
        x = Interface(stream)
        libattn.attention(x, x, x, out=out)
    assert [(c["stream"], c["has_stream"]) for c in calls] == [(7, 1), (None, 0), (0x123, 1)]
    assert {c["workspace_size"] for c in calls} == {0}

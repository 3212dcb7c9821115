"""The package apart from its computations: arrays of other libraries, queries such as supports(),
threads."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading

import libattn
import numpy as np
import pytest
from libattn import _arrays, _facts, _library


class Exporter:
    """An array that speaks DLPack alone, as those of JAX in host memory."""

    def __init__(self, x):
        self.x = x

    def __dlpack__(self, **words):
        return self.x.__dlpack__(**words)

    def __dlpack_device__(self):
        return self.x.__dlpack_device__()

    @property
    def __cuda_array_interface__(self):
        raise AttributeError("in host memory, as JAX says it")


def draw(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


def test_dlpack_without_copies(rng):
    q, k, v = (draw(rng, 2, 3, 5, 8).swapaxes(1, 2) for _ in "qkv")
    expected = libattn.attention(q, k, v)
    found = libattn.attention(Exporter(q), Exporter(k), Exporter(v))
    assert isinstance(found, np.ndarray) and (found == expected).all()
    out = np.zeros_like(expected)
    libattn.attention(Exporter(q), k, v, out=Exporter(out))
    assert (out == expected).all()
    length = np.array([3, -1], np.int32)
    with pytest.raises(ValueError, match="len_kv: found -1"):
        libattn.attention(q, k, v, len_kv=Exporter(length))
    with pytest.raises(ValueError, match="DLPack type"):
        libattn.attention(Exporter(np.zeros((1, 1, 1, 1), np.int16)), k, v)


def test_cuda_array_interface_is_read():
    class OnCuda:
        __cuda_array_interface__ = {
            "shape": (2, 3),
            "typestr": "<f2",
            "data": (4096, True),
            "strides": (8, 2),
            "version": 3,
        }

    x = OnCuda()
    family = _arrays.family_of("x", x)
    facts = family.facts("x", x)
    assert facts.strides == (4, 1) and facts.dtype == _facts.DTYPES["float16"]
    assert _facts.DEVICES[facts.device] == "cuda" and family.pointer("x", x) == 4096
    with pytest.raises(ValueError, match="read-only"):
        family.check_output("x", x)


def test_out_must_be_given_where_it_cannot_be_made():
    class OnCuda:
        __cuda_array_interface__ = {
            "shape": (1, 3, 1, 8),
            "typestr": "<f4",
            "data": (4096, False),
            "strides": None,
            "version": 3,
        }

    x = OnCuda()
    with pytest.raises((ValueError, libattn.Unsupported)) as caught:
        libattn.attention(x, x, x)
    assert "out" in str(caught.value) or "cuda" in str(caught.value)


def test_torch_tensors(rng):
    torch = pytest.importorskip("torch")
    arrays = [draw(rng, 1, 5, 2, 8) for _ in "qkv"]
    expected = libattn.attention(*arrays)
    tensors = [torch.from_numpy(x) for x in arrays]
    found = libattn.attention(*tensors)
    assert isinstance(found, torch.Tensor) and (found.numpy() == expected).all()
    half = [x.bfloat16() for x in tensors]
    assert libattn.attention(*half).dtype == torch.bfloat16
    with pytest.raises(ValueError, match="libattn.torch"):
        libattn.attention(tensors[0].clone().requires_grad_(), *tensors[1:])
    freed = tensors[0].clone()
    freed.untyped_storage().resize_(0)
    with pytest.raises(ValueError, match="storage is empty"):
        libattn.attention(freed, *tensors[1:])
    with pytest.raises(ValueError, match="device"):
        libattn.attention(tensors[0].to("meta"), *tensors[1:])
    with pytest.raises(ValueError, match="layout|sparse"):
        libattn.attention(tensors[0].to_sparse(), *tensors[1:])


def test_questions():
    q = np.zeros((1, 4, 2, 8), np.float32)
    line = libattn.describe(q, q, q, causal=True, window=(3, None))
    assert line.split()[-2:] == ["causal", "window_left=3"]
    assert libattn.supports(line).supported
    assert libattn.supports(line, "backward").backend == "cpu"
    verdict = libattn.supports(line, device="webgpu")
    assert verdict.supported or "webgpu" in verdict.reason.lower()
    assert "plan: kernel=" in libattn.explain(line)
    assert libattn.workspace_bytes(line, "backward") >= 0
    assert libattn.info()["version"] == libattn.__version__


@pytest.mark.parametrize("function", ("supports", "explain", "workspace_bytes"))
def test_a_context_lives_as_long_as_the_call(function, monkeypatch):
    """Another thread can empty the cache of contexts during a call."""
    name = f"attn_{function}"
    call, destroy = getattr(_library.LIBRARY, name), _library.LIBRARY.attn_context_destroy
    destroyed = []

    def noted(handle):
        destroyed.append(handle.value)
        destroy(handle)

    def interrupted(handle, *arguments):
        destroyed.clear()  # an address can be used again
        _library._contexts.clear()
        gc.collect()
        assert handle.value not in destroyed
        return call(handle, *arguments)

    monkeypatch.setattr(_library, "_contexts", {})
    monkeypatch.setattr(_library.LIBRARY, "attn_context_destroy", noted)
    monkeypatch.setattr(_library.LIBRARY, name, interrupted)
    getattr(libattn, function)("len_q=3 len_kv=3")


def test_many_threads_at_once(rng):
    problems = [[draw(rng, 1, n, 2, 8) for _ in "qkv"] for n in (3, 3, 17, 40)]
    expected = [libattn.attention(*x, causal=True) for x in problems]
    wrong = []

    def work(at):
        for _ in range(200):
            if (libattn.attention(*problems[at], causal=True) != expected[at]).any():
                wrong.append(at)

    threads = [threading.Thread(target=work, args=(at % 4,)) for at in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_import_brings_no_framework():
    code = "import libattn, sys; print({'torch', 'jax', 'transformers'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"

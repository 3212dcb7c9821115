"""NumPy arrays computed through WebGPU: device="webgpu".

Skipped, with the reason, where the library finds no adapter; Mesa's on the CPU (Debian:
mesa-vulkan-drivers) will do.
"""

from __future__ import annotations

import libattn
import numpy as np
import pytest
from libattn import _reference as reference

_BACKEND = next(one for one in libattn.info()["backends"] if one["name"] == "webgpu")
on_webgpu = pytest.mark.skipif(not _BACKEND["usable"], reason=_BACKEND["detail"])


def close(found, right, tolerance=1e-5):
    error = np.abs(np.asarray(found, np.float64) - right).max()
    assert error <= tolerance * max(1.0, np.abs(right).max()), error


def arrays(rng, dtype=np.float32):
    """q, k, v and the gradient of o: grouped heads, lengths of more than a tile."""
    shapes = (2, 37, 4, 16), (2, 70, 2, 16), (2, 70, 2, 24), (2, 37, 4, 24)
    return tuple(rng.standard_normal(shape).astype(dtype) for shape in shapes)


@on_webgpu
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_attention_and_gradients(rng, dtype):
    q, k, v, dout = arrays(rng, dtype)
    tolerance = 1e-5 if dtype is np.float32 else 4e-3
    options = {"causal": True, "window": (40, None)}
    wide = [x.astype(np.float64) for x in (q, k, v, dout)]
    right = reference.attention(*wide[:3], **options)
    o, lse = libattn.attention(q, k, v, return_lse=True, device="webgpu", **options)
    assert type(o) is np.ndarray and o.dtype == dtype
    close(o, right.o, tolerance)
    close(lse, right.lse, tolerance)
    gradients = reference.gradients(wide[3], *wide[:3], **options)
    found = libattn.attention_backward(dout, q, k, v, o, lse, device="webgpu", **options)
    for name in ("dq", "dk", "dv"):
        close(getattr(found, name), gradients[name], 2 * tolerance)


@on_webgpu
def test_decode_appends_to_the_cache(rng):
    q = rng.standard_normal((2, 1, 4, 16), np.float32)
    caches = [rng.standard_normal((2, 70, 2, 16), np.float32) for _ in range(2)]
    new = [rng.standard_normal((2, 1, 2, 16), np.float32) for _ in range(2)]
    len_kv = np.array([69, 20], np.int32)
    here = [x.copy() for x in caches]
    there = [x.copy() for x in caches]
    options = {"k_new": new[0], "v_new": new[1], "len_kv": len_kv}
    right = libattn.decode(q, *here, **options)
    close(libattn.decode(q, *there, device="webgpu", **options), right)
    for a, b in zip(here, there, strict=True):
        np.testing.assert_array_equal(a, b)


@on_webgpu
def test_merge_and_rope(rng):
    q, k, v, dout = arrays(rng)
    whole, _ = libattn.attention(q, k, v, return_lse=True)
    parts = []
    for keys in (slice(0, 30), slice(30, 70)):
        parts += libattn.attention(q, k[:, keys], v[:, keys], return_lse=True, device="webgpu")
    o, lse = libattn.merge(*parts, device="webgpu")
    close(o, whole)
    found = libattn.merge_backward(dout, *parts, o, lse, device="webgpu")
    for a, b in zip(found, libattn.merge_backward(dout, *parts, o, lse), strict=True):
        close(a, b)
    turned = libattn.rope(q, pos_offset=5, device="webgpu")
    close(turned, libattn.rope(q, pos_offset=5))


@on_webgpu
def test_what_it_can_not_do_is_refused_with_the_reason(rng):
    q, k, v, _ = (x.astype(np.float64) for x in arrays(rng))
    with pytest.raises(libattn.Unsupported, match="webgpu: no kernel for f64"):
        libattn.attention(q, k, v, device="webgpu")


def test_an_unknown_device_is_refused(rng):
    q, k, v, _ = arrays(rng)
    for device in ("cuda", "gpu", 1):
        with pytest.raises(ValueError, match="device: found .*; accepted 'host', 'webgpu'"):
            libattn.attention(q, k, v, device=device)
        with pytest.raises(ValueError, match="device"):
            libattn.rope(q, device=device)


def test_host_is_the_default(rng):
    q, k, v, _ = arrays(rng)
    np.testing.assert_array_equal(
        libattn.attention(q, k, v, device="host"), libattn.attention(q, k, v)
    )


def test_without_an_adapter_the_reason_is_told(rng):
    if _BACKEND["usable"]:
        pytest.skip("there is an adapter")
    q, k, v, _ = arrays(rng)
    with pytest.raises(libattn.Unsupported, match="webgpu: "):
        libattn.attention(q, k, v, device="webgpu")

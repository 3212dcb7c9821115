"""Bad input gives a Python exception with a clear message, never a crash."""

from __future__ import annotations

import os
import random
import re

import libattn
import numpy as np
import pytest
from exported import Exported
from libattn import _library

CALLS = int(os.environ.get("ATTN_FUZZ_CALLS", "10000"))


def arrays(n=4, m=6, h=2, g=1, dim=8, dtype=np.float32):
    rng = np.random.default_rng(1)
    shapes = ((2, n, h, dim), (2, m, g, dim), (2, m, g, dim))
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


def f(*shape):
    return np.zeros(shape, np.float32)


BAD = {
    "q: found builtins.list": lambda q, k, v: ([[1.0]], k, v, {}),
    "q: found numpy.ma.*MaskedArray": lambda q, k, v: (np.ma.masked_array(q), k, v, {}),
    "dtype: found complex64": lambda q, k, v: (q.astype(np.complex64), k, v, {}),
    "other byte order": lambda q, k, v: (q.astype(">f4"), k, v, {}),
    "q: rank": lambda q, k, v: (q[None], k, v, {}),
    "attention: shape of q": lambda q, k, v: (q[0, 0], k, v, {}),
    "type of v": lambda q, k, v: (q, k, v.astype(np.float16), {}),
    "heads": lambda q, k, v: (q, np.repeat(k, 3, 2), np.repeat(v, 3, 2), {}),
    "last dimension of q": lambda q, k, v: (np.asfortranarray(q), k, v, {}),
    "last dimension of k": lambda q, k, v: (q, np.repeat(k, 2, -1)[..., ::2], v, {}),
    "strides of q": lambda q, k, v: (q[:, ::-1], k, v, {}),
    "q: strides: found": lambda q, k, v: (
        np.ndarray(q.shape, q.dtype, bytes(4096), 0, (262, 130, 66, 4)),
        k,
        v,
        {},
    ),
    "unknown option 'casual'": lambda q, k, v: (q, k, v, {"casual": True}),
    "diagonal: found 'left'": lambda q, k, v: (q, k, v, {"diagonal": "left"}),
    "diagonal: found 1.5": lambda q, k, v: (q, k, v, {"diagonal": 1.5}),
    "window: found 3": lambda q, k, v: (q, k, v, {"window": 3}),
    "window: .*None = unlimited": lambda q, k, v: (q, k, v, {"window": (-1, -1)}),
    "softcap": lambda q, k, v: (q, k, v, {"softcap": -1.0}),
    "scale: found 'x'": lambda q, k, v: (q, k, v, {"scale": "x"}),
    "scale": lambda q, k, v: (q, k, v, {"scale": float("nan")}),
    "dropout": lambda q, k, v: (q, k, v, {"dropout_p": 1.0, "seed": 1}),
    "dropout_p": lambda q, k, v: (q, k, v, {"dropout_p": 0.001, "seed": 1}),
    "seed: found -1": lambda q, k, v: (q, k, v, {"dropout_p": 0.5, "seed": -1}),
    "seed: found none with dropout_p=0.5": lambda q, k, v: (q, k, v, {"dropout_p": 0.5}),
    "seed: found 0.5": lambda q, k, v: (q, k, v, {"dropout_p": 0.5, "seed": 0.5}),
    "len_q: found -3": lambda q, k, v: (q, k, v, {"len_q": np.array([1, -3], np.int32)}),
    "len_kv: dtype: found float64; accepted int32, int64, or a list": lambda q, k, v: (
        q,
        k,
        v,
        {"len_kv": np.array([1.0, 2.0])},
    ),
    "len_kv: found 1099511627776; accepted -2": lambda q, k, v: (
        q,
        k,
        v,
        {"len_kv": np.array([1, 2**40])},
    ),
    r"len_kv: found \[True, 2\]; accepted a list": lambda q, k, v: (
        q,
        k,
        v,
        {"len_kv": [True, 2]},
    ),
    "len_kv: dtype: found bool; accepted int32": lambda q, k, v: (
        q,
        k,
        v,
        {"len_kv": np.ones(2, bool)},
    ),
    r"kv_begin: found \[\[0, 0.5": lambda q, k, v: (q, k, v, {"kv_begin": [[0, 0.5, 1, 1]]}),
    r"len_q: found \[\[1\], \[2, 3\]\]": lambda q, k, v: (q, k, v, {"len_q": [[1], [2, 3]]}),
    "len_kv": lambda q, k, v: (q, k, v, {"len_kv": np.array([1, 2, 3], np.int32)}),
    "cu_len_q: found a sum": lambda q, k, v: (
        q[0],
        k[0],
        v[0],
        {
            "cu_len_q": np.array([0, 3, 1], np.int32),
            "cu_len_kv": np.array([0, 3, 6], np.int32),
        },
    ),
    "cu_len_q": lambda q, k, v: (q[0], k[0], v[0], {}),
    "alibi_slopes: found NaN": lambda q, k, v: (
        q,
        k,
        v,
        {"alibi_slopes": np.array([1, np.nan], np.float32)},
    ),
    "alibi_slopes": lambda q, k, v: (q, k, v, {"alibi_slopes": f(3)}),
    "sinks": lambda q, k, v: (q, k, v, {"sinks": f(2).astype(np.float16)}),
    r"shape of mask: .* accepted \[1\|2": lambda q, k, v: (
        q,
        k,
        v,
        {"mask": np.ones((4, 5), bool)},
    ),
    r"mask: found shape \[2, 4, 6\]": lambda q, k, v: (q, k, v, {"mask": np.ones((2, 4, 6), bool)}),
    "mask: dtype: found float32; accepted bool, uint8; a float mask": lambda q, k, v: (
        q,
        k,
        v,
        {"mask": f(4, 6)},
    ),
    "sinks: dtype: found int64; accepted float32, float64$": lambda q, k, v: (
        q,
        k,
        v,
        {"sinks": np.zeros(2, np.int64)},
    ),
    "causal: found 'no'; accepted True or False": lambda q, k, v: (q, k, v, {"causal": "no"}),
    "deterministic: found 'False'": lambda q, k, v: (q, k, v, {"deterministic": "False"}),
    "causal: found 1;": lambda q, k, v: (q, k, v, {"causal": 1}),
    "return_lse: found 'yes'": lambda q, k, v: (q, k, v, {"return_lse": "yes"}),
    "scale: found '0.5'": lambda q, k, v: (q, k, v, {"scale": "0.5"}),
    "scale: found True": lambda q, k, v: (q, k, v, {"scale": True}),
    "max_len_q: found True": lambda q, k, v: (q, k, v, {"max_len_q": True}),
    r"cu_len_q: found shape \[0\]; accepted \[b \+ 1\]": lambda q, k, v: (
        q[0],
        k[0],
        v[0],
        {"cu_len_q": np.zeros(0, np.int32), "cu_len_kv": [0, 6]},
    ),
    "type of k and v: found f16 with a q of f32": lambda q, k, v: (
        q,
        k.astype(np.float16),
        v.astype(np.float16),
        {},
    ),
    "__cuda_array_interface__: found 'x'": lambda q, k, v: (Interface("x"), k, v, {}),
    "bias": lambda q, k, v: (q, k, v, {"bias": f(1, 1, 4, 7)}),
    "origin: found 3": lambda q, k, v: (q, k, v, {"origin": 3}),
    "rope: found 'half'": lambda q, k, v: (q, k, v, {"rope": "half"}),
    "rope.style": lambda q, k, v: (q, k, v, {"rope": libattn.Rope(style="neox")}),
    "rot_dim": lambda q, k, v: (q, k, v, {"rope": libattn.Rope(rot_dim=3)}),
    "rope.rot_dim: found 0; accepted even numbers": lambda q, k, v: (
        q,
        k,
        v,
        {"rope": libattn.Rope(rot_dim=0)},
    ),
    "precision": lambda q, k, v: (q, k, v, {"precision": "fp8"}),
    "out: found a read-only": lambda q, k, v: (q, k, v, {"out": readonly(q)}),
    "shape of out": lambda q, k, v: (q, k, v, {"out": f(2, 4, 2, 7)}),
    "aliases: found out, which is written, over memory of q;": lambda q, k, v: (
        q,
        k,
        v,
        {"out": q},
    ),
    "workspace": lambda q, k, v: (q, k, v, {"workspace": np.zeros(1, np.uint8)}),
    r"workspace: found ndarray of float32 \[8\]": lambda q, k, v: (q, k, v, {"workspace": f(8)}),
    r"max_len_q: found -5; accepted 0 to 2\^31 - 1": lambda q, k, v: (q, k, v, {"max_len_q": -5}),
    "max_len_kv: found 4294967296;": lambda q, k, v: (q, k, v, {"max_len_kv": 2**32}),
    "shape of rope.positions_q: found i32": lambda q, k, v: (
        q,
        k,
        v,
        {"rope": libattn.Rope(positions_q=[[1, 2]], positions_kv=[[1, 2]])},
    ),
    "rope.sin is needed: found none with rope.cos": lambda q, k, v: (
        q,
        k,
        v,
        {"rope": libattn.Rope(cos=f(6, 4))},
    ),
    "bias: strides: found .-6, 1.; accepted 0 or more": lambda q, k, v: (
        q,
        k,
        v,
        {"bias": Exported(f(4, 6)[::-1])},
    ),
    "out_dtype: found 'int8'; accepted 'float32', 'float16'": lambda q, k, v: (
        q,
        k,
        v,
        {"out_dtype": "int8"},
    ),
    "out_dtype: found 'f2'; accepted 'float32'": lambda q, k, v: (q, k, v, {"out_dtype": "f2"}),
}


class Interface:
    """An object with a __cuda_array_interface__ of choice."""

    def __init__(self, value):
        self.value = value

    @property
    def __cuda_array_interface__(self):
        return self.value


def readonly(x):
    x = np.zeros_like(x)
    x.flags.writeable = False
    return x


@pytest.mark.parametrize("message", BAD)
def test_the_message_names_the_rule(message):
    q, k, v, options = BAD[message](*arrays())
    with pytest.raises((ValueError, TypeError)) as caught:
        libattn.attention(q, k, v, **options)
    text = str(caught.value)
    assert re.search(message, text), text
    assert text.startswith("attention: "), text
    assert "found" in text or "unknown option" in text
    assert "\n" not in text


def test_backward_and_decode_refuse_clearly():
    q, k, v = arrays()
    o, lse = libattn.attention(q, k, v, return_lse=True)
    with pytest.raises(ValueError, match="lse"):
        libattn.attention_backward(o, q, k, v, o, lse[..., :3])
    with pytest.raises(ValueError, match="want: found 'dz'"):
        libattn.attention_backward(o, q, k, v, o, lse, want=("dz",))
    with pytest.raises(ValueError, match="accumulate: found no array"):
        libattn.attention_backward(o, q, k, v, o, lse, accumulate=True)
    with pytest.raises(ValueError, match="bias"):
        libattn.attention_backward(o, q, k, v, o, lse, want=("dbias",))
    with pytest.raises(ValueError, match="read-only"):
        new = f(2, 1, 1, 8)
        length = np.array([1, 1], np.int32)
        libattn.decode(q, readonly(k), v, k_new=new, v_new=new, len_kv=length)
    new = {"k_new": f(2, 1, 1, 8), "v_new": f(2, 1, 1, 8), "len_kv": [1, 1]}
    with pytest.raises(ValueError, match="aliases: found v_cache, which is written, over memory"):
        libattn.decode(v[:, :1], k, v, **new)
    with pytest.raises(ValueError, match="type of k_cache and v_cache: found f16"):
        libattn.decode(q, k.astype(np.float16), v.astype(np.float16))
    with pytest.raises(TypeError, match="unknown option 'block_table'"):
        libattn.attention_backward(o, q, k, v, o, lse, block_table=f(1))  # type: ignore[call-arg]


ALIGNED = 64


def workspace(size):
    """Bytes at an aligned address."""
    x = np.zeros(size + ALIGNED, np.uint8)
    at = -x.ctypes.data % ALIGNED
    return x[at : at + size]


@pytest.mark.parametrize("warm", (False, True), ids=("first call", "repeated call"))
def test_what_is_written_must_not_be_read_only(warm):
    """The check must also run in a call that reuses the structures of one with a writable array."""
    q, k, v = arrays()
    bias, sinks = f(1, 1, 4, 6), f(2)
    options = {"bias": bias, "sinks": sinks}
    o, lse = libattn.attention(q, k, v, return_lse=True, **options)

    def new(**written):
        return libattn.decode(
            q, k_new=k[:, :1], v_new=v[:, :1], len_kv=np.array([1, 2], np.int32), **written
        )

    def forward(**written):
        return libattn.attention(q, k, v, **options, **written)

    def backward(**written):
        return libattn.attention_backward(o, q, k, v, o, lse, **options, **written)

    count = np.zeros(1, np.int32)
    calls = [
        (forward, {"out": o.copy()}),
        (forward, {"lse_out": lse.copy()}),
        (forward, {"nonfinite_count": count}),
        (forward, {"workspace": workspace(1 << 20)}),
        (backward, {"nonfinite_count": count}),
        (backward, {"workspace": workspace(1 << 20)}),
        (backward, {"dq": q.copy()}),
        (backward, {"dk": k.copy()}),
        (backward, {"dv": v.copy()}),
        (backward, {"dbias": bias.copy()}),
        (backward, {"dsink": sinks.copy()}),
        (new, {"k_cache": k.copy(), "v_cache": v.copy()}),
        (lambda **w: libattn.merge(o, lse, o, lse, **w), {"out": o.copy()}),
        (lambda **w: libattn.merge(o, lse, o, lse, **w), {"lse_out": lse.copy()}),
        (lambda **w: libattn.rope(q, **w), {"out": q.copy()}),
    ]
    for call, written in calls:
        if warm:
            call(**written)
        for name, x in written.items():
            x.flags.writeable = False
            with pytest.raises(ValueError, match=f": {name}: found a read-only array"):
                call(**written)
            x.flags.writeable = True


def test_read_only_memory_of_dlpack_is_refused():
    """DLPack 1.0 has a flag for read-only memory; NumPy 2.1 and later set it."""

    q, k, v = arrays()
    out = np.zeros_like(q)
    libattn.attention(q, k, v, out=Exported(out))
    assert np.abs(out - libattn.attention(q, k, v)).max() == 0
    out.flags.writeable = False
    with pytest.raises(ValueError, match="read-only|readonly|DLPack does not export"):
        libattn.attention(q, k, v, out=Exported(out))
    assert np.isfinite(libattn.attention(Exported(q), k, v)).all()


def test_an_error_leaves_the_next_call_alone():
    q, k, v = arrays()
    before = libattn.attention(q, k, v)
    for _ in range(3):
        with pytest.raises(ValueError):
            libattn.attention(q, k, v, scale=float("inf"))
        assert (libattn.attention(q, k, v) == before).all()


def test_thread_counts():
    before = libattn.get_num_threads()
    for bad in (-1, 1.5, "2", True, 10**9, 2**31, 2**32, 2**32 + 1, 2**70):
        with pytest.raises(ValueError, match=f"accepted 0 .default. to {_library._MOST_THREADS}$"):
            libattn.set_num_threads(bad)
    assert libattn.get_num_threads() == before >= 1
    with pytest.raises(ValueError, match=f"accepted 0 to {_library._MOST_THREADS}$"):
        _library.Context(_library._MOST_THREADS + 1)


def test_questions_refuse_clearly():
    with pytest.raises(ValueError, match="frobnicate"):
        libattn.supports("len_q=3 frobnicate")
    with pytest.raises(ValueError, match="pass_"):
        libattn.supports("len_q=3 len_kv=3", "sideways")
    with pytest.raises(ValueError, match="device"):
        libattn.explain("len_q=3 len_kv=3", device="tpu")
    with pytest.raises(ValueError, match="supports: problem: found 3"):
        libattn.supports(3)  # type: ignore[arg-type]


def test_rope_refuses_to_rotate_no_dimension():
    x = arrays()[0]
    with pytest.raises(ValueError, match="rope: rot_dim: found 0; accepted even numbers from 2"):
        libattn.rope(x, rot_dim=0)
    assert (libattn.rope(x, rot_dim=None) == libattn.rope(x, rot_dim=x.shape[-1])).all()


def random_array(rng):
    """Mostly plausible arrays, with wrong types, ranks, sizes, strides and values among them."""
    shape = [rng.choice([0, 1, 1, 2, 2, 3, 4, 8]) for _ in range(rng.choice([1, 2, 3, 4, 4, 4, 5]))]
    dtype = rng.choice(
        [np.float32] * 6 + [np.float64, np.float16, np.int32, np.int64, np.uint8, bool]
    )
    x = (np.random.default_rng(rng.getrandbits(32)).standard_normal(shape) * 4).astype(dtype)
    trick = rng.randrange(12)
    if trick == 0 and x.ndim > 1:
        x = x.swapaxes(0, -1)
    elif trick == 1:
        x = x[..., ::-1]
    elif trick == 2 and x.ndim and len(x):
        x = np.broadcast_to(x[:1], (2**40, *x.shape[1:]))
    elif trick == 3 and x.dtype.kind == "f":
        x = np.where(x > 2, np.nan, x).astype(x.dtype)
    elif trick == 4:
        x.flags.writeable = False
    return x


def test_random_bad_calls_never_crash():
    """The test passes if the process survives. A refused call must raise an exception."""
    rng = random.Random(20241)
    odd = [
        None,
        0,
        1,
        -1,
        2**31,
        2**63,
        2**70,
        -(2**63),
        0.5,
        float("nan"),
        float("inf"),
        "x",
        "",
        b"y",
    ]
    odd += [(), (1, 2), (None, None), (0, -1), [1], {}, object(), True, libattn.Origin(q=2**62)]
    odd += [libattn.Rope(pos_offset=2**62), libattn.Rope(base=-1.0), libattn.Rope(cos=f(2, 2))]
    names = sorted(libattn.Options.__annotations__)
    refused = 0
    for _ in range(CALLS):
        q, k, v = arrays(rng.choice([0, 1, 4]), rng.choice([0, 1, 6]), dtype=np.float32)
        good = [q, k, v]
        for at in range(3):
            if rng.random() < 0.2:
                good[at] = random_array(rng) if rng.random() < 0.8 else rng.choice(odd)
        options = {}
        for name in rng.sample(names, rng.randrange(4)):
            if name == "stream":  # libattn can't check this address, so the caller must be right
                continue
            options[name] = random_array(rng) if rng.random() < 0.5 else rng.choice(odd)
        try:
            if options.get("dropout_p"):
                options.setdefault("seed", 1)
            which = rng.randrange(6)
            if which < 2:
                libattn.attention(*good, **options)
            elif which == 2:
                o, lse = libattn.attention(q, k, v, return_lse=True)
                libattn.attention_backward(o, *good, o, lse, **options)
            elif which == 3:
                extra = {name: random_array(rng) for name in ("block_table",) if rng.random() < 0.5}
                libattn.decode(*good, k_new=k[:, :1], v_new=v[:, :1], **extra, **options)
            elif which == 4:
                libattn.merge(random_array(rng), random_array(rng), random_array(rng), good[0])
            else:
                libattn.rope(
                    good[0], positions=random_array(rng), rot_dim=rng.choice([None, 2, -2])
                )
        except (ValueError, TypeError, MemoryError, libattn.Error):
            refused += 1
    assert refused > CALLS // 4

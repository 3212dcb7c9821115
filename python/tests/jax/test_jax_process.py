"""libattn.jax in a process: its imports, its threads, and the host's time per call."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time

import pytest

jax = pytest.importorskip("jax", minversion="0.6")

import jax.numpy as jnp  # noqa: E402
import libattn  # noqa: E402
from libattn.jax import attention  # noqa: E402

MICROSECONDS_ABOVE_NOTHING = 20


def in_process(code):
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=os.environ, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_libattn_does_not_import_jax():
    assert in_process("import sys, libattn; print('jax' in sys.modules)") == ["False"]


def test_libattn_jax_does_not_import_torch_and_starts_no_backend():
    code = """
import sys, libattn.jax
from jax._src import xla_bridge
print('torch' in sys.modules, bool(xla_bridge._backends))"""
    assert in_process(code) == ["False", "False"]


def test_threads():
    """The result does not depend on the number of threads, also if the number is set later."""
    x = jnp.ones((2, 64, 4, 16)) * jnp.arange(64.0)[:, None, None]
    run = jax.jit(lambda x: attention(x, x, x, causal=True))
    before = run(x)
    try:
        for threads in (1, 3):
            libattn.set_num_threads(threads)
            assert jnp.array_equal(run(x), before)
    finally:
        libattn.set_num_threads(0)


def test_calls_at_the_same_time():
    """XLA runs independent calls of a program in parallel, and also programs of several threads."""
    x = jnp.ones((2, 32, 4, 16)) * jnp.arange(32.0)[:, None, None]
    scales = [0.1 * (i + 1) for i in range(8)]
    one = jax.jit(lambda x: [attention(x, x, x, scale=s) for s in scales])
    together = one(x)
    for got, scale in zip(together, scales, strict=True):
        assert jnp.array_equal(got, attention(x, x, x, scale=scale))


def microseconds(function, x):
    """The processor time per call: the minimum over several batches, because other programs run."""
    times = []
    for _ in range(20):
        start = time.process_time()
        for _ in range(100):
            function(x).block_until_ready()
        times.append((time.process_time() - start) / 100)
    return 1e6 * min(times)


def test_overhead_of_a_call():
    x = jnp.ones((1, 8, 4, 16))
    call = jax.jit(lambda x: attention(x, x, x))
    nothing = jax.jit(lambda x: x + 1)
    call(x), nothing(x)
    found = []
    try:
        libattn.set_num_threads(1)
        while len(found) < 5 and min(found, default=math.inf) > MICROSECONDS_ABOVE_NOTHING:
            found.append(microseconds(call, x) - microseconds(nothing, x))
    finally:
        libattn.set_num_threads(0)
    assert min(found) <= MICROSECONDS_ABOVE_NOTHING, found

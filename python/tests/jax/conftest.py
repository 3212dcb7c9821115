"""Tests of libattn.jax run on 8 virtual CPU devices; JAX reads their number when it starts."""

from __future__ import annotations

import contextlib
import os

import pytest

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
os.environ.setdefault("JAX_PLATFORMS", "cpu")


@pytest.fixture
def x64():
    """JAX with 64-bit types: its name for that differs between versions."""
    import jax

    if hasattr(jax, "enable_x64"):
        context = jax.enable_x64(True)
    else:
        from jax.experimental import enable_x64

        context = enable_x64()
    with contextlib.ExitStack() as stack:
        stack.enter_context(context)
        yield

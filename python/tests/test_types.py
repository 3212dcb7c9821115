"""A type checker infers that results have the type of q, and it reports wrong calls."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1]
CALLS = """
from typing import Any
import numpy as np
from numpy.typing import NDArray
from typing_extensions import assert_type
import libattn

def calls(q: NDArray[np.float32], want_lse: bool) -> None:
    assert_type(libattn.attention(q, q, q, causal=True, window=(3, None)), NDArray[np.float32])
    o, lse = libattn.attention(q, q, q, return_lse=True, kv_begin=[[0, 1]], diagonal="top_left")
    assert_type(o, NDArray[np.float32])
    assert_type(lse, NDArray[np.float32])
    either = libattn.attention(q, q, q, return_lse=want_lse)
    assert_type(either, NDArray[np.float32] | tuple[NDArray[np.float32], NDArray[np.float32]])
    assert_type(libattn.decode(q, q, q, out_dtype=np.float32), NDArray[np.float32])
    assert_type(libattn.rope(q, style="half"), NDArray[np.float32])
    assert_type(libattn.merge(o, lse, None, lse)[0], NDArray[np.float32])
    grads = libattn.attention_backward(o, q, q, q, o, lse, want=("dq",))
    assert_type(grads, libattn.Gradients[NDArray[np.float32]])
    assert_type(libattn.attention_weights(q, q, rows=slice(0, 4)), NDArray[np.float32])

def mistakes(q: NDArray[np.float32]) -> None:
    libattn.attention("q", q, q)  # type: ignore[call-overload]
    libattn.attention(q, q, q, causl=True)  # type: ignore[call-overload]
    libattn.attention(q, q, q, diagonal="left")  # type: ignore[call-overload]
    libattn.rope(q, style="full")  # type: ignore[arg-type]
"""


@pytest.mark.parametrize(
    "module", ["libattn", "libattn.torch", "libattn.distributed", "libattn.plot"]
)
def test_results_have_a_type(module):
    if module in ("libattn.torch", "libattn.distributed"):
        pytest.importorskip("torch")
    found = importlib.import_module(module)
    functions = [getattr(found, name) for name in found.__all__]
    untyped = [
        one.__name__
        for one in functions
        if inspect.isfunction(one)
        and inspect.signature(one).return_annotation in ("Any", inspect.Signature.empty)
    ]
    assert untyped == []


@pytest.mark.skipif(importlib.util.find_spec("mypy") is None, reason="no mypy")
def test_mypy_knows_the_types_of_results(tmp_path):
    file = tmp_path / "calls.py"
    file.write_text(CALLS, encoding="utf-8")
    words = [sys.executable, "-m", "mypy", "--strict", "--config-file", os.devnull]
    words += ["--cache-dir", str(tmp_path), "--follow-imports", "silent", str(file)]
    environment = os.environ | {"MYPYPATH": str(PACKAGE)}
    done = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr

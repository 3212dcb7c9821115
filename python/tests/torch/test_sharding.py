"""libattn.torch on DTensors: two ranks on the CPU, over gloo."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", minversion="2.4")

PROGRAM = Path(__file__).parents[1] / "shared" / "sharded_calls.py"


def test_two_ranks(tmp_path):
    if not torch.distributed.is_available():
        pytest.skip("PyTorch without torch.distributed")
    # Two ranks share the processors: threads that wait by spinning would slow both down.
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    words = [sys.executable, str(PROGRAM)]
    ranks = [
        subprocess.Popen(
            [*words, str(rank), str(tmp_path / "store")],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
        )
        for rank in range(2)
    ]
    try:
        texts = [rank.communicate(timeout=300)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    for rank, text in zip(ranks, texts, strict=True):
        assert rank.returncode == 0 and "passed" in text, text

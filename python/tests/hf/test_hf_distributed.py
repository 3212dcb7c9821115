"""libattn.hf.sequence_parallel: logits and gradients of small models on two ranks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
PROGRAM = Path(__file__).parents[1] / "shared" / "distributed_models.py"


def test_two_ranks():
    if not torch.distributed.is_available():
        pytest.skip("PyTorch without torch.distributed")
    found = subprocess.run(
        [sys.executable, str(PROGRAM), "2"],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=300,
    )
    assert found.returncode == 0, (found.stdout + found.stderr)[-4000:]

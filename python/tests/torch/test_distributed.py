"""libattn.distributed: processes on the CPU over gloo, compared with one process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", minversion="2.4")
if not torch.distributed.is_available():
    pytest.skip("PyTorch without torch.distributed", allow_module_level=True)

SHARED = Path(__file__).parents[1] / "shared"
KILLED = ("killed", "killed_in_backward", "killed_in_exchange")


def run(program, *words, timeout=300):
    """Runs a program that forks ranks. Each has one thread: ranks share the processors."""
    found = subprocess.run(
        [sys.executable, str(SHARED / program), *words],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=timeout,
    )
    assert found.returncode == 0, (found.stdout + found.stderr)[-4000:]
    return found.stdout


def test_against_one_process():
    """A slice of the cases; `tools/full_tests.sh distributed` runs all, on up to 8 ranks."""
    run("distributed_cases.py", "1", "2", "3", "4", "--cover")


def test_dropout_masks():
    """Which pairs are dropped, bit for bit."""
    run("distributed_masks.py", "4", "--few")


def test_calls():
    """Those without timing and without torch.compile, which the same step of the full tier adds."""
    run("distributed_calls.py", "decode", "errors", "forms", "bytes_moved", *KILLED, "silent")


@pytest.mark.parametrize("lengths", ([2**32 + 1, 1], [-1, 1], [1.0, 1.0], [True, True]), ids=str)
def test_lengths_of_a_cache_are_checked(lengths):
    from libattn.distributed import _decode

    q, cache = torch.zeros(2, 1, 2, 8), torch.zeros(2, 4, 2, 8)
    with pytest.raises(ValueError, match="^decode: len_kv: .*found .*; accepted "):
        _decode._check(q, cache, cache, None, {"len_kv": torch.tensor(lengths)})
    given = _decode._check(q, cache, cache, None, {"len_kv": torch.tensor([3, 1])})
    assert given["len_kv"].dtype == torch.int32

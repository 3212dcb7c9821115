"""New processes and the cache of compiled kernels: cold, warm, shared by two processes, damaged,
read-only, and without a compiler. Each process reports its result as a line of JSON."""

import json
import os
import stat
import subprocess
import sys

import pytest

PROGRAM = """
import json, sys, time
import torch, libattn
torch.manual_seed(0)
q, k, v = (torch.randn(1, 200, 2, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
torch.cuda.synchronize()
libattn.info()  # driver and compiler
try:
    began = time.perf_counter()
    o = libattn.attention(q, k, v, causal=True)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - began
    s = (q[0].double().transpose(0, 1) @ k[0].double().transpose(0, 1).mT) / 8
    s = s.masked_fill(torch.ones(200, 200, device="cuda").triu(1).bool(), -torch.inf)
    want = (s.softmax(-1) @ v[0].double().transpose(0, 1)).transpose(0, 1)
    answer = {"error": float((o[0].double() - want).abs().max()), "first call s": seconds}
except libattn.Error as error:
    answer = {"refused": str(error)}
print(json.dumps(answer))
"""


def _start(cache, **environment):
    found = dict(os.environ, ATTN_CACHE_DIR=str(cache), **environment)
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        env=found,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _answer(process):
    out, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors[-2000:]
    answer = json.loads(out.strip().split("\n")[-1])
    print(answer)
    return answer


def _files(cache):
    return [path for path in cache.rglob("*") if path.is_file()]


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


def test_cold_and_warm(cache):
    cold = _answer(_start(cache))
    assert cold["error"] < 0.02
    kept = {path: path.read_bytes() for path in _files(cache)}
    assert kept
    warm = _answer(_start(cache))
    assert warm["error"] < 0.02
    assert {path: path.read_bytes() for path in _files(cache)} == kept
    assert cold["first call s"] < 10 * 1.5  # the machine may be busy with other tests
    assert warm["first call s"] < cold["first call s"]


def test_two_at_once_fill_one_cache(cache):
    for process in [_start(cache) for _ in range(2)]:
        assert _answer(process)["error"] < 0.02
    assert not [path for path in _files(cache) if path.suffix == ".tmp"]


@pytest.mark.parametrize("damage", ("cut", "noise", "empty"))
def test_damaged_files_are_made_again(cache, damage):
    assert _answer(_start(cache))["error"] < 0.02
    for path in _files(cache):
        content = path.read_bytes()
        broken = {
            "cut": content[: len(content) // 2],
            "noise": b"\x5a" * len(content),
            "empty": b"",
        }
        path.write_bytes(broken[damage])
    assert _answer(_start(cache))["error"] < 0.02


def test_a_cache_that_can_not_be_written(tmp_path):
    """A file stands where the folder should be. (Root could write to a read-only folder.)"""
    place = tmp_path / "file"
    place.write_text("")
    place.chmod(stat.S_IRUSR)
    assert _answer(_start(place))["error"] < 0.02
    assert place.read_text() == ""


def test_without_a_compiler(cache):
    refused = _answer(_start(cache, ATTN_NVRTC="/nonexistent"))
    assert "NVRTC" in refused["refused"]
    assert _answer(_start(cache))["error"] < 0.02
    assert _answer(_start(cache, ATTN_NVRTC="/nonexistent"))["error"] < 0.02

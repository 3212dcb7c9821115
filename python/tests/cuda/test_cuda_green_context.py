"""Calls on a stream of a green context, which owns a part of the device's multiprocessors: fewer
blocks run at once than plans assume. They give the same bits as on the whole device."""

import ctypes
import subprocess
import sys

import libattn
import pytest
import torch

SECONDS = 120
SM = 1  # CU_DEV_RESOURCE_TYPE_SM
DEFAULT_STREAM = 1  # CU_GREEN_CTX_DEFAULT_STREAM, which must be given
NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING
RESOURCE_BYTES = 144  # of CUdevResource
CASES = {
    # what: (dim, heads_q, heads_kv, rows, causal)
    "d64 full": (64, 16, 16, 2048, False),
    "d64 causal": (64, 16, 16, 2048, True),
    "d128 full": (128, 16, 16, 2048, False),
    "d128 causal": (128, 16, 16, 2048, True),
    "d128 grouped": (128, 16, 4, 2048, True),
    "d256 causal": (256, 8, 8, 2048, True),
}


def _stream(sms: int) -> torch.cuda.ExternalStream:
    """A stream of a green context with at least `sms` multiprocessors of device 0."""
    driver = ctypes.CDLL("libcuda.so.1")

    def call(name, *arguments):
        result = getattr(driver, name)(*arguments)
        if result != 0:
            pytest.skip(f"{name} answers {result}")

    torch.cuda.init()
    torch.empty(1, device="cuda")
    device = ctypes.c_int()
    call("cuDeviceGet", ctypes.byref(device), 0)
    whole, part, rest = (ctypes.create_string_buffer(RESOURCE_BYTES) for _ in range(3))
    call("cuDeviceGetDevResource", device, whole, SM)
    groups = ctypes.c_uint(1)
    call("cuDevSmResourceSplitByCount", part, ctypes.byref(groups), whole, rest, 0, sms)
    descriptor, context, stream = (ctypes.c_void_p() for _ in range(3))
    call("cuDevResourceGenerateDesc", ctypes.byref(descriptor), part, 1)
    call("cuGreenCtxCreate", ctypes.byref(context), descriptor, device, DEFAULT_STREAM)
    call("cuGreenCtxStreamCreate", ctypes.byref(stream), context, NON_BLOCKING, 0)
    return torch.cuda.ExternalStream(stream.value)


def _results(dim, heads_q, heads_kv, rows, causal):
    torch.manual_seed(3)

    def random(heads):
        return torch.randn(1, rows, heads, dim, device="cuda", dtype=torch.bfloat16)

    q, k, v, dout = random(heads_q), random(heads_kv), random(heads_kv), random(heads_q)
    o, lse = libattn.attention(q, k, v, causal=causal, return_lse=True)
    found = libattn.attention_backward(dout, q, k, v, o, lse, causal=causal, deterministic=True)
    one = libattn.decode(q[:, :1], k, v)
    return [o, lse, found.dq, found.dk, found.dv, one]


def _compare(what: str) -> None:
    expected = _results(*CASES[what])
    torch.cuda.synchronize()
    stream = _stream(8)
    with torch.cuda.stream(stream):
        found = _results(*CASES[what])
    stream.synchronize()
    for a, b in zip(expected, found, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("what", CASES)
def test_same_bits(what):
    """In a process that can be ended: blocks that wait for each other would wait forever."""
    done = subprocess.run(
        [sys.executable, __file__, what], timeout=SECONDS, capture_output=True, text=True
    )
    if "Skipped: " in done.stderr:
        pytest.skip(done.stderr.split("Skipped: ")[-1].strip())
    assert done.returncode == 0, done.stderr


if __name__ == "__main__":
    _compare(sys.argv[1])

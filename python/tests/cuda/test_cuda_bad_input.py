"""Bad input on CUDA: memory that is not the device's, values on the device that are out of bounds,
too little memory. Each gives a clear error or a documented result, and the next call works."""

import libattn
import libattn.torch
import pytest
import torch
from against_float64 import H, M, N, compare, expected, found, inputs

DTYPE = torch.bfloat16


@pytest.fixture
def x():
    """Inputs. After the test, a valid call must still work on the device and be right."""
    x = inputs("causal", "cuda", DTYPE)
    yield x
    torch.cuda.synchronize()
    compare(found(x), expected(x), DTYPE)


def _int(rows):
    return torch.tensor(rows, dtype=torch.int32, device="cuda")


class Elsewhere:
    """A tensor with a false address or device in its __cuda_array_interface__."""

    def __init__(self, tensor, pointer):
        self._tensor = tensor
        self._pointer = pointer

    @property
    def __cuda_array_interface__(self):
        facts = self._tensor.half().__cuda_array_interface__
        return dict(facts, data=(self._pointer, False))


def test_a_host_tensor_next_to_device_tensors(x):
    libattn.torch.attention(*(t.cpu() for t in (x.q, x.k, x.v)))  # its structures are reused
    for arguments in ((x.q.cpu(), x.k, x.v), (x.q, x.k.cpu(), x.v)):
        with pytest.raises(ValueError, match="device of (q|k): found"):
            libattn.torch.attention(*arguments)
    with pytest.raises(ValueError, match="device of len_kv: found host"):
        libattn.torch.attention(x.q, x.k, x.v, len_kv=_int([3, 4]).cpu())
    pinned = torch.empty(x.q.shape, dtype=torch.float16).pin_memory()
    half = x.q.half()
    with pytest.raises(ValueError, match="data of k: found page-locked host memory; accepted"):
        libattn.attention(
            *(half, Elsewhere(half, pinned.data_ptr()), half), out=torch.empty_like(half)
        )


def test_an_address_that_is_not_the_devices(x):
    half = x.q.half()
    host = torch.empty(x.q.shape, dtype=torch.float16)
    for pointer in (host.data_ptr(), 4096):
        with pytest.raises(ValueError, match="data of k: found a pointer that CUDA doesn't know"):
            libattn.attention(half, Elsewhere(half, pointer), half)


def test_an_address_between_elements(x):
    half = x.q.half()
    with pytest.raises(ValueError, match="alignment of k.*accepted a multiple of 2 bytes"):
        libattn.attention(half, Elsewhere(half, half.data_ptr() + 1), half)


def test_tensors_of_two_devices(x):
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two CUDA devices")
    other = x.k.to("cuda:1")
    with pytest.raises(ValueError, match="device.*cuda:1"):
        libattn.torch.attention(x.q, other, x.v)
    # All tensors are on the second device, while the first one is current.
    moved = inputs("causal", "cuda:1", DTYPE)
    compare(found(moved), expected(moved), DTYPE)


def test_lengths_out_of_bounds_are_clamped(x):
    y = inputs("lengths", "cuda", DTYPE)
    y.options = {"len_q": _int([2**31 - 1, -5]), "len_kv": _int([10**9, 77]), "causal": True}
    got = found(y)
    y.options |= {"len_q": _int([N, 0]), "len_kv": _int([M, 77])}
    compare(got, expected(y), DTYPE)


def test_ranges_out_of_bounds_are_clamped(x):
    y = inputs("ranges", "cuda", DTYPE)
    begin, end = (y.options[n].clone() for n in ("kv_begin", "kv_end"))
    y.options = {"kv_begin": begin.clone(), "kv_end": end.clone()}
    y.options["kv_begin"][:, ::3] = -(2**31)
    y.options["kv_end"][:, 1::3] = 2**31 - 1
    y.options["kv_end"][:, 2::3] = -7
    got = found(y)
    y.options = {"kv_begin": begin.clamp(0, M), "kv_end": end.clamp(0, M)}
    y.options["kv_begin"][:, ::3] = 0
    y.options["kv_end"][:, 1::3] = M
    y.options["kv_end"][:, 2::3] = 0
    compare(got, expected(y), DTYPE)


@pytest.mark.parametrize(
    "sums", ([0, 10**9, 2 * 10**9], [-50, -7, 2**31 - 1], [100, 30, 90], [5, 5, 5])
)
def test_sums_of_lengths_out_of_bounds_touch_nothing_else(x, sums):
    """Out-of-bounds cu_len may give any values, but must not change memory around the outputs."""
    guard = 4096
    q, k, v, dout = (t.flatten(0, 1) for t in (x.q, x.k, x.v, x.dout))
    cu = _int(sums)

    def guarded(t):
        whole = torch.full((t.numel() + 2 * guard,), 7.0, dtype=t.dtype, device="cuda")
        return whole, whole[guard:-guard].view(t.shape)

    lse = torch.empty(H, q.shape[0], device="cuda")
    wholes, views = zip(*(guarded(t) for t in (q, lse, q, k, v)), strict=True)
    options = {"cu_len_q": cu, "cu_len_kv": cu, "max_len_q": N, "max_len_kv": M, "causal": True}
    libattn.attention(q, k, v, out=views[0], lse_out=views[1], **options)
    gradients = dict(zip(("dq", "dk", "dv"), views[2:], strict=True))
    libattn.attention_backward(dout, q, k, v, *views[:2], want=("dq",), **gradients, **options)
    torch.cuda.synchronize()
    for whole in wholes:
        assert bool((whole[:guard] == 7).all()) and bool((whole[-guard:] == 7).all())


def test_a_workspace_that_is_too_small(x):
    problem = libattn.describe(x.q, x.k, x.v)
    needed = libattn.workspace_bytes(problem, "backward", "cuda")
    o, lse = libattn.attention(x.q, x.k, x.v, return_lse=True)
    small = torch.empty(max(needed - 1, 0), dtype=torch.uint8, device="cuda")
    if needed > 0:
        with pytest.raises(ValueError, match="workspace"):
            libattn.attention_backward(x.dout, x.q, x.k, x.v, o, lse, workspace=small)
    exact = torch.empty(needed, dtype=torch.uint8, device="cuda")
    got = libattn.attention_backward(x.dout, x.q, x.k, x.v, o, lse, workspace=exact)
    want = libattn.attention_backward(x.dout, x.q, x.k, x.v, o, lse)
    assert torch.allclose(got.dk.float(), want.dk.float(), rtol=2e-2, atol=2e-2)


def test_seeds_of_the_host_next_to_device_tensors(x):
    seed = torch.ones(1, dtype=torch.int64)
    with pytest.raises(ValueError, match="seed"):
        libattn.attention(x.q, x.k, x.v, dropout_p=0.5, seed=seed)

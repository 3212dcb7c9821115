"""Calls that write into the caller's tensors raise PyTorch's version counter, with which autograd
finds values that changed after they were saved."""

from __future__ import annotations

import libattn
import libattn.torch
import pytest
import torch

LENGTHS = torch.tensor([1, 2], dtype=torch.int32)


def rows(n=4):
    return torch.randn(2, n, 2, 8)


def calls():
    """Calls with the tensors that they write into."""
    q, k, v, new = rows(), rows(), rows(), rows(1)
    o, lse = libattn.attention(q, k, v, return_lse=True)
    bias, sinks = torch.zeros(1, 1, 4, 4), torch.zeros(2)
    count = torch.zeros(1, dtype=torch.int32)
    more = {"k_new": new, "v_new": new, "len_kv": LENGTHS}

    def forward(**written):
        libattn.attention(q, k, v, **written)

    def backward(**written):
        libattn.attention_backward(o, q, k, v, o, lse, bias=bias, sinks=sinks, **written)

    def flash(k_cache, v_cache):
        libattn.torch.flash_attn_with_kvcache(
            rows(1), k_cache, v_cache, new, new, cache_seqlens=LENGTHS
        )

    gradients = {"dq": rows(), "dk": rows(), "dv": rows()}
    gradients |= {"dbias": bias.clone(), "dsink": sinks.clone()}
    return {
        "attention": (forward, {"out": o.clone(), "lse_out": lse.clone()}),
        "nonfinite_count": (forward, {"nonfinite_count": count}),
        "attention_backward": (backward, gradients),
        "merge": (
            lambda **w: libattn.merge(o, lse, o, lse, **w),
            {"out": o.clone(), "lse_out": lse.clone()},
        ),
        "rope": (lambda **w: libattn.rope(q, **w), {"out": q.clone()}),
        "decode": (
            lambda **w: libattn.decode(rows(1), **more, **w),
            {"k_cache": rows(), "v_cache": rows()},
        ),
        "libattn.torch.decode": (
            lambda **w: libattn.torch.decode(rows(1), **more, **w),
            {"k_cache": rows(), "v_cache": rows()},
        ),
        "flash_attn_with_kvcache": (flash, {"k_cache": rows(), "v_cache": rows()}),
    }


@pytest.mark.parametrize("name", calls())
def test_what_a_call_writes_has_a_new_version(name):
    call, written = calls()[name]
    for _ in range(2):  # the second call reuses the structures of the first
        before = {name: x._version for name, x in written.items()}
        call(**written)
        assert all(x._version > before[name] for name, x in written.items())


def test_what_a_call_reads_keeps_its_version():
    q, k, v = rows(1), rows(), rows()
    libattn.attention(q, k, v)
    libattn.decode(q, k, v, len_kv=LENGTHS)
    libattn.torch.decode(q, k, v, len_kv=LENGTHS)
    with pytest.raises(ValueError, match="shape of out"):
        libattn.attention(k, k, v, out=q)
    assert [x._version for x in (q, k, v)] == [0, 0, 0]


@pytest.mark.parametrize("decode", (libattn.decode, libattn.torch.decode))
def test_a_cache_that_changed_is_not_differentiated(decode):
    x = rows().requires_grad_()
    cache = x * 1
    o = libattn.torch.attention(rows(), cache, rows())
    with torch.no_grad():
        decode(rows(1), cache, rows(), k_new=rows(1), v_new=rows(1), len_kv=LENGTHS)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        o.sum().backward()


def test_an_output_that_was_saved_is_not_differentiated():
    x = rows().requires_grad_()
    y = x * 1
    z = (y**2).sum()
    with torch.no_grad():
        libattn.attention(rows(), rows(), rows(), out=y)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.backward()


def test_inference_tensors_have_no_version():
    with torch.inference_mode():
        out, k, v = rows(), rows(), rows()
    libattn.attention(rows(), rows(), rows(), out=out)
    libattn.decode(rows(1), k, v, k_new=rows(1), v_new=rows(1), len_kv=LENGTHS)
    kept = rows()
    with torch.inference_mode():
        libattn.attention(rows(), rows(), rows(), out=kept)
    assert kept._version == 1

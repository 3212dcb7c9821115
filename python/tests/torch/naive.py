"""Textbook attention in plain PyTorch, differentiable, and the comparison that the drop-ins' tests
use: row by row, twice the error of the same formula in the same precision, plus rounding.

Tensors are [b, n, h, d]; docs/semantics.md is what it spells. It shares nothing with the library.
"""

import torch


def band(n, m, causal=False, window=(-1, -1), diag=None):
    """bool [n, m]: key j is visible to query i by causality and window; negative = unlimited."""
    diag = m - n if diag is None else diag
    at = torch.arange(n)[:, None] + diag
    key = torch.arange(m)[None, :]
    seen = torch.ones(n, m, dtype=torch.bool)
    if causal:
        seen &= key <= at
    if window[0] >= 0:
        seen &= key >= at - window[0]
    if window[1] >= 0:
        seen &= key <= at + window[1]
    return seen


def alibi(slopes, n, m, diag=None):
    """[b|1, h, n, m]: -slope * |i + diag - j| of slopes [h] or [b, h]."""
    diag = m - n if diag is None else diag
    distance = (torch.arange(n)[:, None] + diag - torch.arange(m)[None, :]).abs()
    slopes = slopes if slopes.dim() == 2 else slopes[None]
    return -slopes[:, :, None, None] * distance


def naive(q, k, v, *, scale=None, softcap=0.0, add=None, seen=None, kept=None, dtype=torch.float64):
    """(o [b, n, h, dv], lse [b, h, n]) computed in `dtype`; rows that see nothing are 0 and -inf.

    add: added to the scores, seen: bool, kept: factors of dropout, each broadcast to [b, h, n, m].
    """
    group = q.size(2) // k.size(2)
    q, k, v = (x.to(dtype) for x in (q, k, v))
    k, v = (x.repeat_interleave(group, 2) for x in (k, v))
    scale = q.size(-1) ** -0.5 if scale is None else scale
    s = scale * torch.einsum("bnhd,bmhd->bhnm", q, k)
    if softcap > 0:
        s = softcap * torch.tanh(s / softcap)
    if add is not None:
        s = s + add.to(dtype)
    if seen is not None:
        s = s.masked_fill(~seen, -torch.inf)
    if s.size(-1) == 0:
        o = (s @ v.transpose(1, 2)).transpose(1, 2)
        return o, s.new_full(s.shape[:-1], -torch.inf)
    top = s.amax(-1, keepdim=True).clamp(min=torch.finfo(dtype).min).detach()
    e = torch.exp(s - top)
    total = e.sum(-1, keepdim=True)
    some = torch.where(total > 0, total, torch.ones_like(total))
    p = e / some
    if kept is not None:
        p = p * kept.to(dtype)
    o = torch.einsum("bhnm,bmhd->bnhd", p, v)
    lse = torch.where(total > 0, top + torch.log(some), torch.full_like(total, -torch.inf))
    return o, lse.squeeze(-1)


def turned(x, cos, sin, positions, interleaved):
    """x [b, n, h, d] rotated by rows `positions` [b, n] of tables [positions, rot_dim / 2]."""
    half = cos.size(1)
    c, s = (t.double()[positions.long()][:, :, None] for t in (cos, sin))
    x = x.double()
    head, rest = x[..., : 2 * half], x[..., 2 * half :]
    if interleaved:
        one, two = head[..., 0::2], head[..., 1::2]
        head = torch.stack((one * c - two * s, one * s + two * c), -1).flatten(-2)
    else:
        one, two = head[..., :half], head[..., half:]
        head = torch.cat((one * c - two * s, one * s + two * c), -1)
    return torch.cat((head, rest), -1)


def check_close(got, want, rough, what, dtype=None):
    """Row by row (the last dimension): |got - want| <= 2 x that of `rough` + rounding.

    The last part of the rounding is for sums whose terms of about unit size cancel, where `rough`
    may be exact by luck: with a single key, dq is the difference of equal numbers, 0.
    dtype: that of the call's inputs, if `got` has a wider one.
    """
    assert got.shape == want.shape, f"{what}: {tuple(got.shape)} instead of {tuple(want.shape)}"
    eps = torch.finfo(dtype or got.dtype).eps
    cancelled = max(4 * eps, 256 * min(eps, torch.finfo(torch.float32).eps))
    got, want, rough = (x.detach().double() for x in (got, want, rough))
    assert torch.equal(torch.isinf(got), torch.isinf(want)), f"{what}: infinities elsewhere"
    assert torch.equal(got[torch.isinf(got)], want[torch.isinf(want)]), f"{what}: infinities' sign"
    got, want, rough = (torch.where(torch.isinf(want), 0.0, x) for x in (got, want, rough))
    if got.numel() == 0:
        return
    row = (rough - want).abs().amax(-1, keepdim=True)
    size = want.abs()
    floor = eps * (8 * size.amax(-1, keepdim=True) + 4 * size.amax())
    tolerance = 2 * row + floor + cancelled
    error = (got - want).abs()
    bad = ~(error <= tolerance)
    if bad.any():
        at = tuple(int(x) for x in bad.nonzero()[0])
        raise AssertionError(
            f"{what}: {int(bad.sum())} of {bad.numel()} elements are off; first at {at}: "
            f"{float(got[at])} instead of {float(want[at])}"
        )

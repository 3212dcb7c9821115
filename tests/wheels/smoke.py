"""Forward, backward and bad input of an installed wheel, on NumPy alone.

Compares with a naive softmax in float64. Prints one line; the exit status is 1 after an error.
"""

import platform

import libattn
import numpy as np


def naive(q, k, v, grad):
    """Causal attention on [len, dim], and its gradients; the last query sees the last key."""
    scale = q.shape[1] ** -0.5
    scores = scale * q @ k.T
    scores[~np.tri(*scores.shape, scores.shape[1] - scores.shape[0], dtype=bool)] = -np.inf
    p = np.exp(scores - scores.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    dp = grad @ v.T
    ds = scale * p * (dp - (p * dp).sum(1, keepdims=True))
    return p @ v, ds @ k, ds.T @ q, p.T @ grad


def main() -> None:
    rng = np.random.default_rng(0)
    q, grad = rng.standard_normal((2, 1, 37, 1, 24)).astype(np.float32)
    k, v = rng.standard_normal((2, 1, 53, 1, 24)).astype(np.float32)
    o, lse = libattn.attention(q, k, v, causal=True, return_lse=True)
    gradients = libattn.attention_backward(grad, q, k, v, o, lse, causal=True)
    want = naive(*(x[0, :, 0].astype(np.float64) for x in (q, k, v, grad)))
    for name, found, wanted in zip(("o", "dq", "dk", "dv"), (o, *gradients), want, strict=False):
        error = float(np.abs(found[0, :, 0] - wanted).max())
        assert error <= 1e-5, f"{name}: {error}"
    try:
        libattn.attention(q, k, v[:, :7], causal=True)
    except ValueError as error:
        assert str(error), "an error without a message"
    else:
        raise AssertionError("v of another length than k was accepted")
    print(f"Python {platform.python_version()} on {platform.machine()}: right")


if __name__ == "__main__":
    main()

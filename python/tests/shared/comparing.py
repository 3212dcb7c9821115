"""The comparison of results that the tests of the Python package share."""

from __future__ import annotations

import numpy as np

# Units of rounding: half the distance of neighbours at 1.
UNIT = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}


def assert_close(found, expected, work, scale=1.0, steps=64):
    """Elementwise: |found - expected| <= u_out |expected| + steps u_work scale, and NaN fails.

    work: the name of the type that computed (f32 for 16-bit inputs). scale: the magnitude of the
    terms that were summed. steps: how many roundings of terms may add up in one direction: the sums
    here have at most some hundred terms, in blocks.
    """
    found = np.asarray(found)
    out = UNIT[found.dtype.name]
    found = found.astype(np.float64)
    expected = np.asarray(expected)
    assert found.shape == expected.shape
    infinite = np.isneginf(expected)
    assert (np.isneginf(found) == infinite).all()
    found, expected = np.where(infinite, 0, found), np.where(infinite, 0, expected)
    limit = 2 * out * np.abs(expected) + steps * UNIT[work] * np.maximum(scale, 2.0**-20)
    wrong = ~(np.abs(found - expected) <= limit)
    assert not wrong.any(), (
        f"{wrong.sum()} of {wrong.size} wrong; first at {np.argwhere(wrong)[0]}: "
        f"{found[wrong][0]} for {expected[wrong][0]}"
    )

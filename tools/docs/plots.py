"""Draws the pictures of docs/inspect.md by libattn.plot.

usage: PYTHONPATH=python ATTN_LIBRARY=build/release/src/api/libattn.so python tools/docs/plots.py
needs matplotlib (./dev setup)
"""

from __future__ import annotations

from pathlib import Path

import libattn.plot
import matplotlib
import numpy as np

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "pictures"


def main() -> None:
    matplotlib.use("Agg")
    rng = np.random.default_rng(3)
    n = 160
    # Waves of the position: the most probable keys are multiples of 40 before the query.
    angle = np.arange(n)[:, None] * 2 * np.pi / np.array([40, 20, 13, 8])
    waves = np.concatenate([np.cos(angle), np.sin(angle)], 1) * 1.8
    q, k = (
        (waves + 0.5 * rng.standard_normal(waves.shape))[None, :, None].astype(np.float32)
        for _ in "qk"
    )
    ax = libattn.plot.weights(q, k, rows=slice(None), causal=True, window=(99, 0))
    ax.figure.savefig(FOLDER / "attention_map.png", dpi=80)

    documents = [0, 700, 1100, 1900, 2048]
    begin = np.repeat(documents[:-1], np.diff(documents)).astype(np.int32)[None]
    long = np.zeros((1, 2048, 1, 64), np.float32)
    ax = libattn.plot.tiles(long, long, tile=(64, 64), causal=True, kv_begin=begin)
    ax.figure.savefig(FOLDER / "tiles.png", dpi=80)


if __name__ == "__main__":
    main()

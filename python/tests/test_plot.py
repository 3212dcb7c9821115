"""libattn.plot: what the pictures show, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys

import libattn
import numpy as np
import pytest
from libattn import _reference, plot
from libattn._weights import Call

B, N, M, H, G, D = 2, 50, 70, 4, 2, 8


def normal(*shape):
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def qk():
    return normal(B, N, H, D), normal(B, M, G, D)


BEGIN = np.stack([np.arange(N) // 20 * 20, np.zeros(N)]).astype(np.int32)
OPTIONS = {
    "plain": {},
    "causal": {"causal": True},
    "window": {"window": (9, 4), "diagonal": 3},
    "documents": {"causal": True, "kv_begin": BEGIN},
    "lengths": {"len_q": [31, 0], "len_kv": [70, 12], "causal": True},
    "mask": {"mask": normal(1, 1, N, M) > 0},
}


@pytest.mark.parametrize("tile", [(16, 16), (7, 32)])
@pytest.mark.parametrize("name", OPTIONS)
def test_tiles_hold_what_is_visible(name, tile):
    q, k = qk()
    options = OPTIONS[name]
    seen = _reference.attention(q, k, k, **options).p[:, 0] > 0
    call = Call(q, k, options)
    for batch, one in enumerate(call.sequences):
        found = plot.visited(call, batch, tile)
        for (i, j), state in np.ndenumerate(found):
            part = seen[batch, i * tile[0] : (i + 1) * tile[0], j * tile[1] : (j + 1) * tile[1]]
            part = part[: max(one.len_q - i * tile[0], 0), : max(one.len_kv - j * tile[1], 0)]
            if state == plot.HIDDEN:
                assert not part.any()
            elif name != "mask":
                assert (state == plot.FULL) == bool(part.all())
    assert name == "plain" or (plot.visited(call, 0, tile) != plot.FULL).any()


def test_pictures(tmp_path):
    plt = pytest.importorskip("matplotlib.pyplot")
    plt.switch_backend("Agg")
    q, k = qk()
    ax = plot.weights(q, k, rows=[3, 40], head=2, causal=True, sinks=normal(H))
    shown = ax.images[0].get_array()
    expected = libattn.attention_weights(
        q, k, rows=[3, 40], heads=2, batch=0, causal=True, sinks=normal(H)
    )
    np.testing.assert_array_equal(np.asarray(shown), expected[0, 0])
    ax = plot.entropies(
        np.zeros_like(q), k, rows=slice(0, 8), heads=[0, 1], diagonal=0, causal=True
    )
    np.testing.assert_allclose(ax.lines[1].get_ydata(), np.log2(np.arange(1, 9)), atol=1e-6)
    _, given = plt.subplots()
    assert plot.tiles(q, k, causal=True, dropout_p=0.1, seed=1, ax=given) is given
    planned = libattn.explain(libattn.describe(q, k, k, causal=True))
    rows, keys = given.get_title().split("tiles of ")[1].split(":")[0].split(" x ")
    assert f"tile_q={rows} tile_kv={keys} " in planned
    plt.close("all")

    for name, x in (("q", q), ("k", k)):
        np.save(tmp_path / f"{name}.npy", x)
    words = ["--q", str(tmp_path / "q.npy"), "--k", str(tmp_path / "k.npy"), "--causal"]
    for what, more in (("weights", ["--rows", "0:8"]), ("tiles", []), ("entropies", ["--rows=1"])):
        file = tmp_path / f"{what}.png"
        assert plot.main([what, *words, *more, "--output", str(file)]) == 0
        assert file.read_bytes().startswith(b"\x89PNG")
    assert plot.main(["weights", *words, "--rows", "99", "--output", str(file)]) == 2
    plt.close("all")


def test_what_is_refused():
    pytest.importorskip("matplotlib")
    q, k = qk()
    for message, call in {
        "rows: found 50": lambda: plot.weights(q, k, rows=50),
        "batch: found 2": lambda: plot.tiles(q, k, batch=2),
        "tile: found": lambda: plot.tiles(q, k, tile=(0, 16)),
        "dropout_p": lambda: plot.entropies(q, k, rows=0, dropout_p=0.5, seed=1),
    }.items():
        with pytest.raises(ValueError, match=message):
            call()


def test_without_matplotlib():
    program = (
        "import sys, json; sys.modules['matplotlib'] = None\n"
        "import numpy as np, libattn.plot\n"
        "x = np.zeros((1, 4, 1, 8), np.float32)\n"
        "try:\n    libattn.plot.tiles(x, x)\n"
        "except ImportError as error:\n    print(json.dumps(str(error)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "pip install 'libattn[plot]'" in json.loads(done.stdout), done.stderr

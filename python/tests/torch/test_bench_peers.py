"""bench/peers/torch_cuda.py on the CPU: it checks every result that it measures, and does not time
wrong ones."""

import json
import pathlib
import sys

import libattn
import pytest
import torch

sys.path.append(str(pathlib.Path(__file__).parents[3] / "bench" / "peers"))
peers = pytest.importorskip("torch_cuda", reason="bench/peers needs a newer PyTorch")

OPTIONS = ("window256", "softcap", "alibi", "documents16", "bias", "bias-gradient", "dropout")
OPTIONS += ("sinks", "deterministic")


def measured(tmp_path, *words):
    """The run of these words with lengths divided by 64, and the rows that it wrote."""
    out = tmp_path / "rows.jsonl"
    usual = ("--device", "cpu", "--divide", "64", "--seconds", "0", "--no-peers")
    run = peers.Run(peers.parsed(["--out", str(out), *usual, *words]))
    for suite in ("plain", "lengths", "options"):
        for cell in peers.torch_cells.cells_of(suite, 64):
            run.cell(cell)
    lines = out.read_text().splitlines() if out.exists() else []
    return run, {row["cell"]: row for row in map(json.loads, lines)}


@pytest.mark.parametrize("option", OPTIONS)
def test_an_option_is_right_and_counted(tmp_path, option):
    run, rows = measured(tmp_path, "--filter", f"option/{option}-d64/")
    assert not run.failures
    passes = ["bwd"] if option in ("bias-gradient", "deterministic") else ["fwd", "bwd"]
    assert list(rows) == [f"option/{option}-d64/bf16/{p}" for p in passes]
    for row in rows.values():
        assert row["options"] and row["tflops"] > 0
        assert 0 < row["error"]["max_abs"] < 0.5


def test_pairs_are_the_visible_ones():
    for cell in peers.torch_cells.cells_of("options", 16):
        x = peers.torch_cells.inputs_of(cell, "cpu")
        at = torch.arange(cell.shape.length)
        seen = sys.modules["torch_oracle"].visible(cell, x, at, at)
        found = int(seen.sum()) if seen is not None else cell.shape.length**2
        if cell.option in ("", "deterministic") and cell.shape.causal:
            found = cell.shape.length**2 / 2
        assert cell.pairs() == cell.shape.batch * found


def test_plain_cells_are_the_recorded_ones(tmp_path):
    cells = peers.torch_cells.cells_of("plain", 1)
    assert len(cells) == 48 == len({cell.base() for cell in cells})
    assert {cell.shape.batch * cell.shape.length for cell in cells} == {16384}


def test_lengths_are_measured_in_both_types(tmp_path):
    cells = peers.torch_cells.cells_of("lengths", 1)
    assert len(cells) == 40
    assert {(cell.shape.batch, cell.shape.heads_q) for cell in cells} == {(4, 32)}
    run, rows = measured(tmp_path, "--filter", "lengths/b4-h32-n64-d64-causal/")
    assert not run.failures
    assert [(row["dtype"], row["pass"]) for row in rows.values()] == [
        (dtype, pass_) for dtype in ("bf16", "f16") for pass_ in ("fwd", "bwd")
    ]


@pytest.mark.parametrize("name", ("attention", "attention_backward"))
def test_a_wrong_result_is_not_timed(tmp_path, monkeypatch, name):
    right = getattr(libattn, name)

    def wrong(*arguments, **options):
        found = right(*arguments, **options)
        out = options["out"] if name == "attention" else options["dk"]
        out[0, -1] += 0.25
        return found

    monkeypatch.setattr(libattn, name, wrong)
    run, rows = measured(tmp_path, "--filter", "b32-h32-n16-d64-full")
    assert not rows
    assert len(run.failures) == 1 and ("o:" in run.failures[0] or "dk:" in run.failures[0])


def test_peers_take_turns_where_they_can(tmp_path):
    _, rows = measured(tmp_path, "--peers", "fa2", "--filter", "n16-d64-causal", "--pass", "fwd")
    assert rows
    for row in rows.values():
        assert row["peers"]["fa2"] > 0
        assert row["error"]["ratio_to_fa2"] > 0


def test_errors_of_several_draws_are_beside_those_of_a_peer(tmp_path):
    (cell, *_) = peers.torch_cells.cells_of("errors", 32)
    out = tmp_path / "rows.jsonl"
    run = peers.Run(peers.parsed(["--out", str(out), "--device", "cpu", "--peers", "fa2"]))
    run.errors(cell)
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["cell"] for row in rows] == [f"{cell.base()}/bf16/{p}" for p in ("fwd", "bwd")]
    for row, names in zip(rows, ({"o"}, {"dq", "dk", "dv"}), strict=True):
        error = row["error"]
        assert row["draws"] > 1 and names == set(error["fa2"]) == set(error["rms"])
        assert all(0 < error["of"][name] < 0.5 for name in names)
        assert 0.5 < error["rms_ratio_to_fa2"] < 2 and 0.5 < error["ratio_to_fa2"] < 2
    assert run.compared == [row["error"] for row in rows]
    too_large = [r for r in run.compared if r["ratio_to_fa2"] > peers.MOST_ERROR]
    assert len(run.failures) == len(too_large)


def test_errors_above_those_of_a_peer_fail(tmp_path, monkeypatch):
    monkeypatch.setattr(peers, "MOST_ERROR", 0.0)
    words = ["--suite", "errors", "--divide", "32", "--filter", "d64-causal", "--device", "cpu"]
    words += ["--peers", "fa2", "--out", str(tmp_path / "rows")]
    monkeypatch.setattr(sys, "argv", ["torch_cuda.py", *words])
    assert peers.main() == 1


def test_errors_are_of_three_kinds_of_numbers():
    cells = peers.torch_cells.cells_of("errors", 64)
    assert len(cells) == 18 == len({cell.base() for cell in cells})
    largest = {}
    for cell in cells[::6]:
        x = peers.torch_cells.inputs_of(cell, "cpu")
        largest[cell.numbers] = [float(t[0].float().abs().max()) for t in (x.q, x.k)]
    assert max(largest["normal"]) < 6 < min(largest["heavy"])
    assert largest["large"][0] > 32 > 6 > largest["large"][1]
    makers = [peers.Libattn, *peers.peers_of(cells[12], ("fa2",))]
    rows = peers.errors_over_draws(cells[12], "cpu", makers, draws=1)
    assert 0 < rows["fwd"]["error"]["rms"]["o"] < 1
    assert set(rows["bwd"]["error"]["rms_of_peers"]["fa2"]) >= {"dq", "dk", "dv"}

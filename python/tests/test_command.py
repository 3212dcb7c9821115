"""The package's command `attn`: every subcommand of the compiled command, and `doctor`."""

from __future__ import annotations

import importlib.metadata
import json
import os
import pathlib
import subprocess
import sys

import libattn
import numpy as np
import pytest
from libattn import _check, _doctor

COMMAND = [sys.executable, "-m", "libattn"]


def run(*words, start=COMMAND, **variables):
    # Tests that run at once make spinning threads slow.
    return subprocess.run(
        [*start, *words],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, **variables},
        check=False,
    )


def test_every_command_runs(tmp_path):
    if not _doctor._command().ok:
        pytest.skip("built without the command")
    words = run("--help").stdout
    assert all(f"\n  {name} " in words for name in ("run", "check", "bench", "info", "cache"))
    assert run("--version").stdout.split() == ["attn", libattn.__version__]
    assert {one["name"] for one in json.loads(run("info", "--json").stdout)["backends"]} == {
        one["name"] for one in libattn.info()["backends"]
    }
    arrays = [np.linspace(-1, 1, 4 * 3 * 2 * 8, dtype=np.float32).reshape(4, 3, 2, 8)] * 3
    for name, array in zip("qkv", arrays, strict=True):
        np.save(tmp_path / f"{name}.npy", array)
    files = [word for name in "qkv" for word in (f"--{name}", str(tmp_path / f"{name}.npy"))]
    (tmp_path / "out").mkdir()
    done = run("run", *files, "--causal", "--output", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    assert np.allclose(
        np.load(tmp_path / "out" / "o.npy"), libattn.attention(*arrays, causal=True), atol=1e-6
    )
    row = run("bench", "--problem", "len_q=64 len_kv=64", "--seconds", "0.01", "--json").stdout
    assert json.loads(row.splitlines()[0])["us"] > 0
    folder = str(tmp_path / "cache")
    assert run("cache", "list", ATTN_CACHE_DIR=folder).returncode == 0


def test_bench_draws_plots(tmp_path):
    if not _doctor._command().ok:
        pytest.skip("built without the command")
    pytest.importorskip("matplotlib")
    words = ["bench", "--suite", "plain", "--dtype", "f32", "--pass", "fwd", "--divide", "64"]
    few = ["--filter", "512", "--seconds", "0.01", "--no-verify"]
    done = run(*words, *few, "--plot", str(tmp_path / "plots"), "--out", str(tmp_path / "rows"))
    assert done.returncode == 0, done.stderr
    (picture,) = (tmp_path / "plots").iterdir()
    assert picture.name.endswith("-plain.png") and picture.read_bytes().startswith(b"\x89PNG")
    assert json.loads((tmp_path / "rows").read_text().splitlines()[0])["us"] > 0
    done = run(*words, "--out", "auto", f"--plot={tmp_path}")
    assert done.returncode == 2 and "--out auto" in done.stderr
    done = run(*words, "--list", "--plot", str(tmp_path / "none"))
    assert done.returncode == 0 and not (tmp_path / "none").exists()


def test_bad_words_end_with_one_line():
    if not _doctor._command().ok:
        pytest.skip("built without the command")
    for words in (["nonsense"], ["run", "--q", "/nonexistent.npy"], ["bench", "--suite", "no"]):
        done = run(*words)
        assert done.returncode == 2 and done.stderr.count("\n") == 1, (words, done)
    done = run("info", ATTN_COMMAND="/nonexistent/attn")
    assert done.returncode == 2 and "/nonexistent/attn" in done.stderr


def test_the_installed_command():
    program = pathlib.Path(sys.executable).with_name("attn")
    if not program.exists():
        pytest.skip("the package is not installed in this environment")
    for word in (["--version"], ["doctor", "--help"]):
        assert run(*word, start=[str(program)]).stdout == run(*word).stdout != ""


def rows_of(done):
    assert done.returncode == 0, done.stdout + done.stderr
    return {row["name"]: row for row in json.loads(done.stdout)["rows"]}


def test_doctor_tells_what_runs_and_what_does_not(tmp_path):
    # A torch that can't be imported, and no WebGPU library.
    broken = tmp_path / "torch"
    broken.mkdir()
    (broken / "__init__.py").write_text("raise OSError('libtorch_cpu.so: not found')")
    paths = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    rows = rows_of(run("doctor", "--json", PYTHONPATH=paths, ATTN_WGPU=str(tmp_path)))
    assert rows["cpu"]["ok"] and rows["results"]["ok"]
    assert rows["torch"]["ok"] is False and "libtorch_cpu.so: not found" in rows["torch"]["detail"]
    assert "libattn[torch]" in rows["torch"]["get"]
    assert rows["webgpu"]["ok"] is False
    for row in rows.values():
        assert row["detail"] and (row["ok"] or row["get"] or row["name"] != "torch")


def test_doctor_fits_on_a_screen():
    done = run("doctor", COLUMNS="100")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) <= 40 and lines[0].startswith(f"libattn {libattn.__version__}, ")
    assert sum(line.startswith(("ok ", "no ", "-  ")) for line in lines) >= 9


def test_doctor_reports_a_wrong_result(monkeypatch, capsys):
    monkeypatch.setattr(_doctor, "_frameworks", list)
    monkeypatch.setattr(_check, "compare", lambda: iter([("causal", {"o": 0.5, "dq": np.nan})]))
    assert _doctor.main([]) == 1
    text = capsys.readouterr().out
    assert "causal: o is off by 5.0e-01" in text and "dq is off by nan" in text


def test_doctor_reads_the_details_of_cuda():
    backend = {"built": True, "usable": True, "detail": "A card, CUDA driver 13.0, NVRTC 12.9"}
    rows = _doctor._cuda(backend)
    assert [row.ok for row in rows] == [True, True] and rows[1].detail == "12.9"
    backend["detail"] = "A card, CUDA driver 13.0; only kernels compiled ahead: no NVRTC"
    rows = _doctor._cuda(backend)
    assert [row.ok for row in rows] == [True, False] and "nvrtc" in rows[1].get
    rows = _doctor._cuda({"built": True, "usable": False, "detail": "no CUDA driver"})
    assert [row.ok for row in rows] == [False, None]


def test_the_wheel_has_a_bill_of_materials():
    try:
        files = importlib.metadata.files("libattn") or []
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("the package is not installed in this environment")
    (file,) = (one for one in files if one.name == "libattn.cdx.json")
    bill = json.loads(file.read_text())
    assert bill["metadata"]["component"]["version"] == libattn.__version__
    parts = {part["name"]: part["version"] for part in bill["components"]}
    assert parts["highway"][0].isdigit() and "xxhash" in parts

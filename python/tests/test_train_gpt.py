"""The training example: three attentions give one curve, documents stay apart, and bad input."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
if not (EXAMPLES / "train_gpt.py").is_file():
    pytest.skip("the examples are not next to the tests", allow_module_level=True)
sys.path.insert(0, str(EXAMPLES))

import gpt_model  # noqa: E402
import gpt_text  # noqa: E402
import train_gpt  # noqa: E402

TINY = "--layers 1 --heads 2 --kv-heads 1 --head-dim 8 --hidden 16 --context 32 --samples 0"


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Threads that wait for each other take many times longer on a machine busy with more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def short_files(tmp_path_factory):
    """A folder of short texts: a row of 256 bytes holds parts of several."""
    folder = tmp_path_factory.mktemp("short_files")
    short = [p for p in gpt_text.standard_library() if 100 < p.stat().st_size < 1000]
    for number, path in enumerate(sorted(short)):
        (folder / f"{number}.txt").write_bytes(path.read_bytes())
    return folder


def losses(attention, folder, steps=200):
    """The losses of the first steps of 200, of a model that learns to attend within them."""
    sizes = "--layers 2 --heads 4 --kv-heads 2 --head-dim 32 --hidden 256 --context 256 --batch 2"
    options = train_gpt.parse(
        [str(folder), *sizes.split(), "--learning-rate", "2e-3", "--steps", "200"]
        + ["--evaluate-every", "200", "--attention", attention]
    )
    trainer = train_gpt.Trainer(options)
    return torch.tensor([trainer.train_step()["loss"] for _ in range(steps)]).double()


@pytest.fixture(scope="module")
def eager_losses(short_files):
    return losses("eager", short_files)


@pytest.mark.parametrize("attention", ["libattn", "sdpa"])
def test_the_losses_agree_at_every_step(attention, short_files, eager_losses):
    ours = losses(attention, short_files)
    assert bool((abs(ours - eager_losses) <= 1e-3).all())  # a NaN is not <=
    assert eager_losses[-20:].mean() < eager_losses[0] - 2, "the model did not learn"


@pytest.mark.parametrize("fault", ["documents", "scale"])
def test_a_fault_shows_in_the_losses(fault, short_files, eager_losses, monkeypatch):
    """The comparison would find an attention that looks past documents or is 5% too sharp."""

    def faulty(kv_begin, dropout):
        if fault == "documents":
            kv_begin = torch.zeros_like(kv_begin)
        attend = gpt_model.eager_attention(kv_begin, dropout)
        return lambda q, k, v: attend(q * (1.05 if fault == "scale" else 1.0), k, v)

    monkeypatch.setitem(gpt_model.ATTENTION, "sdpa", faulty)
    faulty_losses = losses("sdpa", short_files, 100)
    assert abs(faulty_losses - eager_losses[:100]).max() > 1e-2


def test_rows_hold_what_the_documents_say():
    documents = [b"abc", b"defgh", b"ij"]
    text = b"".join(b"\0" + d for d in documents)
    stream = gpt_text._stream(torch.frombuffer(bytearray(text), dtype=torch.uint8))
    tokens, targets, kv_begin = stream.rows(torch.tensor([0, 2]), 8)
    assert bytes(tokens[1].tolist()) == b"bc\0defgh" and bytes(targets[1].tolist()) == b"c\0defgh\0"
    assert kv_begin.dtype == torch.int32
    assert kv_begin.tolist() == [[0, 0, 0, 0, 4, 4, 4, 4], [0, 0, 2, 2, 2, 2, 2, 2]]
    mask = gpt_model.visible(kv_begin)
    for row, begin in enumerate(kv_begin.tolist()):
        expected = [[begin[i] <= j <= i for j in range(8)] for i in range(8)]
        assert mask[row, 0].tolist() == expected


def test_a_document_does_not_see_the_one_before(short_files):
    """Changing what stands before a document in its row changes nothing in the document."""
    torch.manual_seed(0)
    for attention in gpt_model.ATTENTION:
        shape = gpt_model.Shape(context=32, layers=2, heads=2, kv_heads=1, head_dim=8, hidden=16)
        model = gpt_model.GPT(shape, attention).eval()
        kv_begin = torch.tensor([[0] * 10 + [10] * 22], dtype=torch.int32)
        tokens = torch.randint(1, 256, (1, 32))
        changed = tokens.clone()
        changed[:, :10] = torch.randint(1, 256, (1, 10))
        before, after = model(tokens, kv_begin), model(changed, kv_begin)
        assert torch.equal(before[:, 10:], after[:, 10:])
        assert not torch.allclose(before[:, :10], after[:, :10])


def test_the_defaults_have_ten_million_parameters():
    model = gpt_model.GPT(gpt_model.Shape(), "sdpa")
    assert 9.9e6 < sum(p.numel() for p in model.parameters()) < 10.1e6


def test_a_resumed_run_continues_the_same_curve(short_files, tmp_path):
    arguments = [str(short_files), *TINY.split(), "--batch", "2", "--out", str(tmp_path)]
    arguments += ["--attention", "sdpa", "--warmup", "2", "--dropout", "0.1"]
    saved = tmp_path / "model.pt"
    # The same --steps, so that the learning rates are the same; stopped half-way by hand.
    options = train_gpt.parse([*arguments, "--steps", "6"])
    whole, _ = train_gpt.train(options)
    half = train_gpt.Trainer(options)
    for _ in range(3):
        half.train_step()
    half.save(saved)
    torch.manual_seed(99)
    options = train_gpt.parse([*arguments, "--steps", "6", "--resume", str(saved)])
    resumed, _ = train_gpt.train(options)
    assert [r["loss"] for r in resumed.curve] == [r["loss"] for r in whole.curve]
    log = [json.loads(line) for line in (tmp_path / "sdpa.jsonl").open()]
    assert [row["step"] for row in log if "step" in row] == [1, 2, 3, 4, 5, 6]


def run(*arguments):
    """The example as a program: its exit status, output and messages."""
    command = [sys.executable, str(EXAMPLES / "train_gpt.py"), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ, timeout=300)
    return done.returncode, done.stdout, done.stderr


def test_compare_prints_speed_and_memory_of_each(short_files, tmp_path):
    rc, out, err = run(
        short_files, *TINY.split(), "--compare", "--steps", 3, "--out", tmp_path / "made"
    )
    assert rc == 0, err
    table = {line.split()[0]: line.split()[1:] for line in out.splitlines()[1:4]}
    assert list(table) == ["libattn", "sdpa", "eager"]
    for tokens_per_second, peak, _, held_out in table.values():
        assert float(tokens_per_second.replace(",", "")) > 0
        assert float(peak.replace(",", "")) > 50 and 0 < float(held_out) < 6
    assert out.count("largest difference of libattn's loss") == 2
    assert (tmp_path / "made" / "loss.png").exists() == ("no loss.png" not in out)
    for name in table:
        log = [json.loads(line) for line in (tmp_path / "made" / f"{name}.jsonl").open()]
        assert [row["step"] for row in log[1:-1]] == [1, 2, 3]
        assert log[-1]["peak_bytes"] > 50e6


def test_one_run_prints_samples_and_saves(short_files, tmp_path):
    rc, out, err = run(
        *(short_files, *TINY.split(), "--samples", 2, "--sample-length", 40, "--prompt", "def "),
        *("--steps", 2, "--out", tmp_path, "--save", tmp_path / "model.pt"),
    )
    assert rc == 0, err
    assert out.count("---- sample") == 2 and "\ndef " in out
    assert "2/2" in err and "tokens/s" in err
    assert (tmp_path / "model.pt").stat().st_size > 1000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("nowhere.txt", "nowhere.txt: no such file or folder"),
        ("empty.txt", "no text"),
        ("binary.bin", "no text"),
        ("folder", "no text"),
        ("short.txt --context 64", "the text has 11 tokens; a context of 64 needs at least 130"),
        ("good.txt --context 0", "context must be at least 1"),
        ("good.txt --heads 3 --kv-heads 2", "heads must be a multiple of kv_heads"),
        ("good.txt --head-dim 7", "head_dim must be even"),
        ("good.txt --batch 0", "--batch must be at least 1"),
        ("good.txt --steps 0", "--steps must be at least 1"),
        ("good.txt --warmup -1", "--warmup must not be negative"),
        ("good.txt --dropout 1", "--dropout must be in [0, 1)"),
        ("good.txt --learning-rate nan", "--learning-rate must be positive"),
        ("good.txt --learning-rate 1e30 --warmup 0", "lower --learning-rate"),
        ("good.txt --resume nowhere.pt", "nowhere.pt: no such file"),
        ("good.txt --resume good.txt", "not a checkpoint of this program"),
        ("good.txt --resume other.pt", "not a checkpoint of this program"),
        ("good.txt --save nowhere/model.pt", "its folder does not exist"),
        ("good.txt --compare --save model.pt", "--compare trains three models"),
        ("good.txt --out good.txt", "good.txt"),
        ("good.txt --device tpu", "--device must be cpu, cuda or cuda:N; it is tpu"),
        ("good.txt --device cuda:99", "--device cuda:99: PyTorch finds"),
    ],
)
def test_bad_input_is_named(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.txt").write_text(" \n")
    (tmp_path / "binary.bin").write_bytes(b"a\0b" * 100)
    (tmp_path / "short.txt").write_text("0123456789")
    (tmp_path / "good.txt").write_text("All that is gold does not glitter. " * 20)
    (tmp_path / "folder").mkdir()
    torch.save({"something": 1}, tmp_path / "other.pt")
    small = f"{TINY} --steps 3 --attention".split() + ["sdpa"]
    given = arguments.split()
    if "--compare" in given:
        small = TINY.split()
    assert train_gpt.main([*small, *given]) == 2
    error = capsys.readouterr().err
    assert message in error and "Traceback" not in error


def test_resume_refuses_another_model(short_files, tmp_path, capsys):
    arguments = [str(short_files), *TINY.split(), "--attention", "sdpa", "--out", str(tmp_path)]
    saved = ["--save", str(tmp_path / "model.pt")]
    assert train_gpt.main([*arguments, "--steps", "2", *saved]) == 0
    resume = ["--resume", str(tmp_path / "model.pt")]
    assert train_gpt.main([*arguments, "--steps", "2", *resume]) == 2
    assert "give more --steps" in capsys.readouterr().err
    assert train_gpt.main([*arguments, "--steps", "4", "--hidden", "24", *resume]) == 2
    assert "its model is" in capsys.readouterr().err


def test_bf16_learns(tmp_path, short_files):
    words = [str(short_files), *TINY.split(), "--steps", "8", "--learning-rate", "0.01"]
    options = train_gpt.parse([*words, "--bf16"])
    options.out = tmp_path
    trainer, _ = train_gpt.train(options)
    assert trainer.curve[-1]["loss"] < trainer.curve[0]["loss"]
    assert all(p.dtype == torch.float32 for p in trainer.model.parameters())


def test_help_explains_every_option(capsys):
    with pytest.raises(SystemExit):
        train_gpt.parse(["--help"])
    text = capsys.readouterr().out
    for option in ("--attention", "--compare", "--context", "--save", "--resume", "--out"):
        assert option in text


@pytest.mark.parametrize("dropout", ["0.1", "0"])  # with 0 the calls are given all ranks' rows
def test_two_processes_have_the_losses_of_one(tmp_path, short_files, dropout):
    words = [str(short_files), *TINY.split(), "--steps", "5", "--batch", "2", "--dropout", dropout]
    one, two = tmp_path / "one", tmp_path / "two"
    assert train_gpt.main([*words, "--out", str(one)]) == 0
    program = [str(EXAMPLES / "train_gpt_parallel.py"), *words, "--out", str(two)]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    found = subprocess.run(
        [*launcher, "--nproc-per-node", "2", *program],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=200,
    )
    assert found.returncode == 0, found.stderr[-4000:]
    curves = []
    for folder in (one, two):
        rows = [json.loads(line) for line in (folder / "libattn.jsonl").open()]
        curves.append([row["loss"] for row in rows if "step" in row])
    assert len(curves[0]) == 5
    assert curves[1] == pytest.approx(curves[0], abs=1e-4)

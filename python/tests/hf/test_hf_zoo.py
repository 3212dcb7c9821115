"""A slice of the zoo: architectures of each kind, refused ones, and ones that were wrong once. Also
checks that the committed results match the table in the documentation.

All architectures: tools/noxfile.py, session "zoo".
"""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", minversion="5.4")

from zoo import build, check, table  # noqa: E402

SLICE = (
    "LlamaForCausalLM",
    "GPT2LMHeadModel",
    "Gemma3ForCausalLM",
    "Qwen3MoeForCausalLM",
    "BloomForCausalLM",
    "DogeForCausalLM",
    "BertForMaskedLM",
    "ModernBertForMaskedLM",
    "T5ForConditionalGeneration",
    "BartForConditionalGeneration",
    "PegasusXForConditionalGeneration",
    "BigBirdPegasusForConditionalGeneration",
    "NllbMoeForConditionalGeneration",
    "SeamlessM4Tv2ForSpeechToText",
    "ViTForImageClassification",
    "CLIPForImageClassification",
    "ParakeetForCTC",
    "Wav2Vec2ForCTC",
    "WhisperForConditionalGeneration",
)


def committed() -> dict[str, dict]:
    return {row["model"]: row for row in table.read()[1]}


@pytest.fixture(scope="module", autouse=True)
def _prepared():
    check.prepare()


@pytest.mark.parametrize("name", SLICE)
def test_equal_or_refused(name, record_property):
    if not hasattr(transformers, name):
        pytest.skip(f"transformers {transformers.__version__} has no {name}")
    row = check.check(name, build.classes()[name][0])
    record_property("row", str(row))
    if row["outcome"] == "equal":
        assert row["calls"] > 0
    elif row["outcome"] == "refused":
        assert row["reason"].startswith("libattn.hf: ")
    versions = {"transformers": transformers.__version__, "torch": torch.__version__.split("+")[0]}
    if versions != table.read()[0]:
        assert row["outcome"] != "wrong", row["reason"]
        return
    expected = committed()[name]
    assert row["outcome"] == expected["outcome"], row["reason"]
    for what in ("heads", "padding", "generate", "causal"):
        assert row[what] == expected[what], what


def test_no_third_outcome():
    assert {row["outcome"] for row in committed().values()} <= {
        "equal",
        "refused",
        "no attention",
        "not built",
    }


def test_every_architecture_is_in_the_results():
    """Checked only with the version of transformers that produced the results."""
    if transformers.__version__ != table.read()[0]["transformers"]:
        pytest.skip("results of another version of transformers")
    assert committed().keys() == build.classes().keys()


def test_table_is_generated_from_the_results():
    text = table.DOCUMENT.read_text()
    assert (
        text.split(table.BEGIN)[1].split(table.END)[0] == table.text()
    ), "run PYTHONPATH=python:python/tests/hf python -m zoo.table"

"""transformers with attn_implementation="libattn" known to it, offline."""

from __future__ import annotations

import os
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))  # small_models, however pytest imports

os.environ["HF_HUB_OFFLINE"] = "1"

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", minversion="5.4")


@pytest.fixture(scope="session", autouse=True)
def _registered(record_testsuite_property):
    import libattn.hf
    import transformers

    # For tools/pairs_table.py.
    record_testsuite_property("torch", torch.__version__)
    record_testsuite_property("transformers", transformers.__version__)

    libattn.hf.register()
    torch.set_num_threads(1)  # the tensors are small


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(20240611)

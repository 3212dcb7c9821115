"""Tests of the package on CUDA tensors. They are skipped, with the reason, if PyTorch or libattn
finds no device. With ATTN_CUDA_TESTS_ON=cpu, the tests that use the fixture `device` run on the
CPU: this checks the tests themselves on a machine without a GPU."""

import os
import pathlib

import pytest

_HERE = pathlib.Path(__file__).parent


def _reason():
    """The reason why no test can run on this machine, or ""."""
    pytest.importorskip("torch")
    from cuda_device import reason_without_cuda

    return reason_without_cuda()


def pytest_collection_modifyitems(items):
    here = [item for item in items if item.path.parent == _HERE]
    if not here:
        return
    if os.environ.get("ATTN_CUDA_TESTS_ON") == "cpu":
        here = [item for item in here if "device" not in item.fixturenames]
        reason = "needs a CUDA device, and ATTN_CUDA_TESTS_ON says cpu"
    else:
        reason = _reason()
    for item in here if reason else ():
        item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture
def device():
    """The device on which a test creates its tensors."""
    return os.environ.get("ATTN_CUDA_TESTS_ON", "cuda")

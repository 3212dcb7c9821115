"""Shared by the tests on PyTorch tensors: the devices that a test runs on."""

import pytest


@pytest.fixture(params=("cpu", "cuda"))
def device(request):
    """The device on which a test creates its tensors. Without a CUDA device, "cuda" is skipped with
    the reason."""
    if request.param == "cuda":
        from cuda_device import reason_without_cuda  # imports PyTorch, which may be missing

        if reason := reason_without_cuda():
            pytest.skip(reason)
    return request.param

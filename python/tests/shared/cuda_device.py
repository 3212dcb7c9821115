"""Whether tests can run on a CUDA device."""

import libattn
import torch


def reason_without_cuda():
    """The reason why no test can run on a CUDA device of this machine, or ""."""
    if not torch.cuda.is_available():
        return "PyTorch finds no CUDA device"
    backend = next(one for one in libattn.info()["backends"] if one["name"] == "cuda")
    return "" if backend["usable"] else f"libattn's backend cuda: {backend['detail']}"

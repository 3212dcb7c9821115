"""Types of arguments and results, for readers, editors and type checkers. No call looks at them.

The element type and the rank of an array are not part of its type: a function that takes a NumPy
array of float16 and returns one of float32 says "NumPy array" of both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

if TYPE_CHECKING:
    import numpy as np
    import torch


class DLPackArray(Protocol):
    """An array with the DLPack protocol: NumPy's, PyTorch's, CuPy's, JAX's and others."""

    def __dlpack__(self, *, stream: Any = None) -> Any: ...

    def __dlpack_device__(self) -> tuple[Any, Any]: ...


class CudaArray(Protocol):
    """An array in CUDA memory with `__cuda_array_interface__`."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...


Array: TypeAlias = "DLPackArray | CudaArray"
"""An array of NumPy, CuPy or PyTorch, or anything with DLPack or `__cuda_array_interface__`."""

Integers: TypeAlias = "Array | Sequence[int] | Sequence[Sequence[int]]"
"""An i32 or int64 array, or a list, which is copied into a small i32 array."""

Indices: TypeAlias = "int | slice | Sequence[int] | Array"
"""Whole numbers that choose rows, heads or sequences: one, several, or a slice."""

ElementType: TypeAlias = "str | type[Any] | np.dtype[Any] | torch.dtype"
"""An element type of NumPy, ml_dtypes or PyTorch, or its name: "float32"."""

ArrayT = TypeVar("ArrayT", bound="DLPackArray | CudaArray")
"""An array; results are of the same kind: NumPy's from NumPy's, PyTorch's from PyTorch's."""

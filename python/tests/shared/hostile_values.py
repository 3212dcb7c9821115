"""Values that an argument of a public function may be given by mistake, by kind of argument.

A generator gets a random.Random, the good value and the maker ("numpy" or "torch"), and returns a
value and its meaning: the good value, which a call may compute with or refuse, or REFUSED, if only
an exception is right.
"""

from __future__ import annotations

import numpy as np
import torch
from exported import Exported

REFUSED = object()


class Broken:
    """An object whose array protocols fail."""

    dtype = "float32"
    shape = (2, 3)

    def __dlpack__(self, **options):
        return 3

    def __dlpack_device__(self):
        raise KeyError("device")

    def __repr__(self):
        raise ArithmeticError("no text")


class Interface:
    """An object with a __cuda_array_interface__ of choice."""

    def __init__(self, value):
        self.__cuda_array_interface__ = value


NO_ARRAYS = [
    3,
    1.5,
    "x",
    b"y",
    [1.0],
    (),
    {},
    object(),
    np.float32(1),
    np.ma.masked_array([1]),
]


def _as_numpy(x):
    return x.detach().numpy() if isinstance(x, torch.Tensor) else np.asarray(x)


def _wrong_array(rng, x):
    """A NumPy or PyTorch array of a wrong type, rank, size, layout or memory, by a name."""
    array = np.array(_as_numpy(x))
    forms = {
        "complex": lambda: array.astype(np.complex64),
        "big-endian": lambda: array.astype(array.dtype.newbyteorder(">")),
        "object": lambda: array.astype(object),
        "str": lambda: array.astype("U8"),
        "int16": lambda: array.astype(np.int16),
        "rank 0": lambda: array.reshape(-1)[:1].reshape(()),
        "rank + 2": lambda: array[None, None],
        "rank 12": lambda: array.reshape((1,) * 8 + array.shape),
        "longer": lambda: np.concatenate([array, array, array], 0),
        "huge": lambda: np.broadcast_to(array[:1], (2**40, *array.shape[1:])),
        "0 in all": lambda: np.zeros((0,) * max(array.ndim, 1), array.dtype),
        "half a stride": lambda: np.ndarray((2,), array.dtype, bytes(64), 1, (3,)),
    }
    return forms[rng.choice(sorted(forms))]()


def _wrong_tensor(rng, x):
    tensor = torch.as_tensor(np.array(_as_numpy(x)))
    forms = {
        "meta": lambda: tensor.to("meta"),
        "sparse": lambda: tensor.to_sparse(),
        "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        "conjugated": lambda: torch.complex(tensor.float(), tensor.float()).conj(),
        "complex": lambda: torch.complex(tensor.float(), tensor.float()),
        "int8": lambda: tensor.to(torch.int8),
        "rank 0": lambda: tensor.reshape(-1)[0],
        "rank + 2": lambda: tensor[None, None],
        "longer": lambda: torch.cat([tensor, tensor, tensor]),
        "huge": lambda: tensor[:1].expand(2**40, *tensor.shape[1:]),
        "0 in all": lambda: tensor.new_empty((0,) * max(tensor.dim(), 1)),
        "freed": lambda: _freed(tensor),
        "quantized": lambda: torch.quantize_per_tensor(tensor.float(), 0.1, 0, torch.qint8),
    }
    return forms[rng.choice(sorted(forms))]()


def _freed(tensor):
    tensor = tensor.clone()
    tensor.untyped_storage().resize_(0)
    return tensor


def floats(rng, good, maker):
    """For q, k, v and others of floating point."""
    kind = rng.randrange(10)
    if kind < 2:
        return rng.choice([*NO_ARRAYS, Broken(), Interface("x"), Interface({"shape": 1})]), REFUSED
    if kind < 5:
        return (_wrong_array if maker == "numpy" else _wrong_tensor)(rng, good), REFUSED
    if good is None:
        return None, None
    if kind == 5:  # a last dimension that is not contiguous
        wide = np.repeat(_as_numpy(good), 2, -1)[..., ::2]
        return (wide if maker == "numpy" else torch.from_numpy(wide)), REFUSED
    if maker == "numpy":
        if kind == 6:
            return Exported(good), good
        if kind == 7:
            read_only = good.copy()
            read_only.flags.writeable = False
            return read_only, good
        return good.astype(np.float64), REFUSED
    if kind == 6:
        return torch._neg_view(-good), good
    return (good.double(), REFUSED) if kind == 7 else (good.clone(), good)


def integers(rng, good, maker):
    """For lengths, ranges of keys, pages and positions."""
    kind = rng.randrange(9)
    array = _as_numpy(good)
    if kind == 0:
        return rng.choice([3, 1.5, "x", b"y", object(), {}, np.int64(3), True, Broken()]), REFUSED
    if kind == 1:
        return (_wrong_array if maker == "numpy" else _wrong_tensor)(rng, good), REFUSED
    if kind == 2:
        return array.tolist(), good
    if kind == 3:
        wide = array.astype(np.int64)
        return (wide if maker == "numpy" else torch.from_numpy(wide)), good
    if kind == 4:
        return rng.choice([[0.5], [[1], [2, 3]], ["a"], [None], [2**70], [True], []]), REFUSED
    if kind == 5:
        far = np.full(array.shape, 2**40)
        return (far if maker == "numpy" else torch.from_numpy(far)), REFUSED
    if kind == 6:
        other = array.astype(rng.choice([np.float32, np.uint8, bool]))
        return (other if maker == "numpy" else torch.from_numpy(other)), REFUSED
    return (good.copy() if maker == "numpy" else good.clone()), good


def pairs(rng, good, maker):
    """For masks and biases [1, 1, n, m]."""
    kind = rng.randrange(7)
    array = _as_numpy(good)
    as_made = (lambda x: x) if maker == "numpy" else torch.from_numpy
    if kind == 0:
        return rng.choice([3, "x", [[1]], object(), Broken()]), REFUSED
    if kind < 3:
        return (_wrong_array if maker == "numpy" else _wrong_tensor)(rng, good), REFUSED
    if kind == 3:
        return as_made(array[0, 0]), good
    if kind == 4:
        return as_made(np.asfortranarray(array)), good
    if kind == 5:
        return as_made(array[0]), REFUSED
    return as_made(array[..., :-1].copy()), REFUSED


def written(rng, good, maker):
    """For arrays that are written to."""
    kind = rng.randrange(5)
    if kind == 0:
        return rng.choice([3, "x", [1.0], object(), Broken()]), REFUSED
    if kind == 1 and maker == "numpy":
        good = good.copy()
        good.flags.writeable = False
        return good, REFUSED
    if kind == 2:
        return (_wrong_array if maker == "numpy" else _wrong_tensor)(rng, good), REFUSED
    if kind == 3 and maker == "numpy":
        return np.broadcast_to(np.zeros(1, good.dtype), good.shape), REFUSED
    return (good.copy() if maker == "numpy" else good.clone()), good


def flag(rng, good, maker):
    value = rng.choice(["no", "", "False", 1, 0, 2.5, [], np.bool_, torch.tensor(True), object()])
    return (np.bool_(good), good) if value is np.bool_ else (value, REFUSED)


def real(rng, good, maker):
    learned = torch.tensor(0.5, requires_grad=True)
    wrong = [
        "0.5",
        "x",
        True,
        [1.0],
        1j,
        object(),
        {},
        float("nan"),
        float("inf"),
        10**400,
        learned,
    ]
    if rng.random() < 0.7:
        return rng.choice([*wrong, np.array([1.0, 2.0]), np.array("x"), torch.ones(2)]), REFUSED
    kind = rng.choice([float, np.float64, np.array, torch.tensor])
    return kind(good), float(good)


def integer(rng, good, maker):
    wrong = ["3", 1.5, True, 2**70, -(2**70), [1], {}, object(), float("nan"), np.array([1, 2])]
    if rng.random() < 0.7:
        return rng.choice([*wrong, np.bool_(True), b"1"]), REFUSED
    return rng.choice([np.int64, np.int32, np.array])(good), good


def diagonal(rng, good, maker):
    return rng.choice(["left", "", 1.5, [good], True, object(), 2**70, b"top_left"]), REFUSED


def names(rng, good, maker):
    """For want= of attention_backward."""
    return rng.choice(["dq", ("dz",), 3, [None], ("dq", 1), [["dq"]], object()]), REFUSED


def broadcast(rng, good, maker):
    """For masks that broadcast as scaled_dot_product_attention says."""
    if rng.random() < 0.5:
        return rng.choice([3, "x", [[1]], object(), _wrong_tensor(rng, good)]), REFUSED
    return rng.choice([good[0, 0], good[0], good.mT.contiguous().mT]), good


def text(rng, good, maker):
    return rng.choice(["left", "", "HALF", 3, b"half", 1.5, [good], object(), "x" * 500]), REFUSED


def window(rng, good, maker):
    wrong = [3, "ab", (), (1,), (1, 2, 3), (-1, -1), (1.5, None), ("a", None), (True, 1), {1: 2}]
    if rng.random() < 0.8:
        return rng.choice([*wrong, (2**70, 1), object(), np.ones((2, 2))]), REFUSED
    return list(good), good


def instance(rng, good, maker):
    """For Rope and Origin."""
    return rng.choice(["half", 3, (), {}, object(), [1], True]), REFUSED


def seed(rng, good, maker):
    wrong = [-1, 2**64, 0.5, "1", True, [1], object(), np.array([1, 2]), np.array(1.0), Broken()]
    if rng.random() < 0.7:
        return rng.choice(wrong), REFUSED
    return rng.choice([np.array([good]), np.uint64(good), np.array(good)]), good


def text_of(value):
    """A value in the name of a call."""
    if isinstance(value, torch.Tensor):
        shape = "nested" if value.is_nested else list(value.shape)
        return f"torch {value.dtype} {shape} {value.device} {value.layout}"
    if isinstance(value, np.ndarray):
        return f"numpy {value.dtype} {list(value.shape)} strides {list(value.strides)}"
    return type(value).__name__ if isinstance(value, Broken) else f"{value!r:.100}"

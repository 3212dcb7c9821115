"""Packed documents, given by boundaries or by positions that restart, become intervals of keys."""

from __future__ import annotations

import torch
from libattn.hf import _documents


def documents(positions):
    found = _documents.of_positions(torch.tensor(positions), len(positions), len(positions[0]))
    return None if found is None else [x.tolist() for x in found]


def test_positions():
    assert documents([[0, 1, 2, 3]]) is None
    assert documents([[5, 6, 7, 8]]) is None
    assert documents([[0, 1, 0, 0]]) == [[[0, 0, 2, 3]], [[2, 2, 3, 4]]]
    # The first document may be the end of a longer one.
    assert documents([[4, 5, 0, 1], [0, 1, 2, 3]]) == [
        [[0, 0, 2, 2], [0, 0, 0, 0]],
        [[2, 2, 4, 4], [4, 4, 4, 4]],
    ]


def test_positions_that_count_otherwise_say_nothing():
    assert documents([[0, 1, 1, 2]]) is None
    assert documents([[1, 1, 0, 1]]) is None
    assert documents([[0, 2, 0, 1]]) is None
    three_axes = torch.zeros(3, 1, 4, dtype=torch.int64)
    assert _documents.of_positions(three_axes, 1, 4) is None
    assert _documents.of_positions(torch.zeros(1, 3), 1, 4) is None


def test_positions_changed_in_place_are_read_again():
    positions = torch.arange(4)[None]
    assert _documents.of_positions(positions, 1, 4) is None
    positions[0, 2:] -= 2
    begin, _ = _documents.of_positions(positions, 1, 4)
    assert begin.tolist() == [[0, 0, 2, 2]]
    assert _documents.of_positions(positions, 1, 4)[0] is begin


def test_bounds():
    cu_q, cu_k = torch.tensor([0, 2, 5]), torch.tensor([0, 3, 7])
    begin, end = _documents.of_bounds(cu_q, cu_k, 1, 6, 8, False, None)
    assert (begin.tolist(), end.tolist()) == ([[0, 0, 3, 3, 3, 3]], [[3, 3, 7, 7, 7, 0]])
    _, end = _documents.of_bounds(cu_q, cu_k, 1, 6, 8, True, None)
    assert end.tolist() == [[2, 3, 5, 6, 7, 0]]
    begin, end = _documents.of_bounds(cu_q, None, 1, 5, 5, False, 2)
    assert (begin.tolist(), end.tolist()) == ([[0, 0, 2, 2, 3]], [[2, 2, 4, 5, 5]])

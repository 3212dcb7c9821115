"""The intervals that libattn.hf gives to its layers against transformers' own boolean masks."""

from __future__ import annotations

import itertools

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", minversion="5.4")

from libattn.hf import _intervals, _mask  # noqa: E402
from libattn.hf._guarded import unguarded  # noqa: E402
from transformers import masking_utils  # noqa: E402

CAUSAL = masking_utils.causal_mask_function
BIDIRECTIONAL = masking_utils.bidirectional_mask_function
NO_PADDING = torch.zeros(3, dtype=torch.int64)

PATTERNS = {
    "causal": CAUSAL,
    "bidirectional": BIDIRECTIONAL,
    "window": masking_utils.sliding_window_causal_mask_function(3),
    "window of one": masking_utils.sliding_window_causal_mask_function(1),
    "two-sided window": masking_utils.sliding_window_bidirectional_mask_function(2),
    "chunks": masking_utils.chunked_causal_mask_function(4, NO_PADDING),
    "chunks after padding": masking_utils.chunked_causal_mask_function(4, torch.tensor([0, 1, 3])),
}

PADDINGS = {
    "none": None,
    "right": [[1] * 9, [1] * 6 + [0] * 3, [1] + [0] * 8],
    "left": [[1] * 9, [0] * 3 + [1] * 6, [0] * 8 + [1]],
    "both, empty": [[0] * 2 + [1] * 5 + [0] * 2, [0] * 9, [1] * 9],
    "holes": [[1, 0, 1, 1, 0, 1, 1, 1, 1], [1] * 9, [0, 1, 0, 0, 0, 1, 0, 0, 0]],
}


@pytest.fixture
def no_evaluation(monkeypatch):
    """Makes a test fail if a pattern is evaluated pair by pair: libattn must recognize the patterns
    of transformers."""
    monkeypatch.delattr(_intervals, "evaluate")


def packed(pattern, positions):
    positions = torch.tensor(positions)
    numbers = masking_utils.find_packed_sequence_indices(positions)
    # transformers 5.4 has no such function: its patterns of packed documents count from the row's
    # first position.
    remap = getattr(masking_utils, "remap_positions_for_packed_sequence", None)
    return masking_utils.and_masks(
        pattern if remap is None else remap(pattern, positions),
        masking_utils.packed_sequence_mask_function(numbers),
    )


def as_boolean(mask, len_q, len_kv, batch=3, *, causal):
    """bool [batch, len_q, len_kv] of what visible_keys returned."""
    key = torch.arange(len_kv)
    assert mask is not None
    mask = unguarded(mask)
    kind = _mask.take_apart(mask, batch, len_q, len_kv).kind
    if kind in (_mask.CAUSAL, _mask.EVERYTHING):
        causal = kind == _mask.CAUSAL
        row = torch.arange(len_q)[:, None] + len_kv - len_q
        plain = key <= row if causal else torch.ones(len_q, len_kv, dtype=torch.bool)
        return plain.expand(batch, len_q, len_kv)
    visible = _mask.take_apart(mask, batch, len_q, len_kv)
    assert visible.kv_begin.stride(-1) == visible.kv_end.stride(-1) == 1
    result = (key >= visible.kv_begin[..., None]) & (key < visible.kv_end[..., None])
    if visible.keys is not None:
        result = result & (visible.keys[:, 0] != 0)
    return result.expand(batch, len_q, len_kv)


def both(*, q_length, kv_length, **arguments):
    """libattn's result, the boolean mask that it stands for, and transformers' boolean mask."""
    sizes = {"batch_size": 3, "q_length": q_length, "kv_length": kv_length}
    skips = {"allow_is_causal_skip": True, "allow_is_bidirectional_skip": False}
    skips.update({name: arguments.pop(name) for name in tuple(arguments) if name in skips})
    ours = _mask.visible_keys(**sizes, **skips, **arguments)
    causal = not skips["allow_is_bidirectional_skip"]
    # With PyTorch 2.4, transformers lets a query without visible keys see all of them. This option
    # prevents that.
    fix = {"allow_torch_fix": False} if torch.__version__.startswith("2.4.") else {}
    theirs = masking_utils.sdpa_mask(**sizes, **arguments, **fix, allow_is_causal_skip=False)
    return ours, as_boolean(ours, q_length, kv_length, causal=causal), theirs[:, 0]


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("name", PATTERNS)
def test_equals_transformers_mask(name, padding, no_evaluation):
    rows = PADDINGS[padding]
    seen = None if rows is None else torch.tensor(rows).bool()
    bidirectional = name in ("bidirectional", "two-sided window")
    # (queries, keys, position of the first query, of the first key): complete rows, one or more
    # queries after cached keys, a static cache longer than the tokens so far, a sliding cache.
    for q_length, kv_length, q_offset, kv_offset in (
        (9, 9, 0, 0),
        (1, 9, 8, 0),
        (4, 9, 5, 0),
        (4, 12, 2, 0),
        (1, 12, 8, 0),
        (2, 5, 7, 4),
        (1, 3, 8, 6),
    ):
        ours, got, expected = both(
            q_length=q_length,
            kv_length=kv_length,
            q_offset=q_offset,
            kv_offset=kv_offset,
            mask_function=PATTERNS[name],
            attention_mask=seen,
            allow_is_causal_skip=not bidirectional,
            allow_is_bidirectional_skip=bidirectional,
        )
        assert torch.equal(got, expected), (q_length, kv_length, q_offset, kv_offset)
        assert unguarded(ours).untyped_storage().nbytes() <= 4 * 3 * 3 * (
            max(q_length, kv_length) + 1
        )


def test_offset_as_a_tensor():
    """A static cache reports the number of tokens so far as a tensor."""
    _, got, expected = both(
        q_length=3, kv_length=16, q_offset=torch.tensor(4), mask_function=PATTERNS["window"]
    )
    assert torch.equal(got, expected)


@pytest.mark.parametrize(
    "name", ["causal", "window", "chunks", "bidirectional", "two-sided window"]
)
def test_packed_documents(name, no_evaluation):
    function = packed(
        PATTERNS[name],
        [[0, 1, 2, 3, 0, 1, 2, 3, 4], [0, 0, 1, 2, 3, 4, 5, 6, 7], [5, 6, 7, 8, 9, 10, 11, 0, 1]],
    )
    ours, got, expected = both(
        q_length=9, kv_length=9, mask_function=function, allow_is_causal_skip=False
    )
    assert unguarded(ours).dtype == torch.int32
    assert torch.equal(got, expected)


def test_plain_masks_take_one_number():
    """A plain mask is one number that says whether attention is causal. It does not depend on the
    layer's flag is_causal, which some models set wrong."""

    def kind(**arguments):
        ours, got, expected = both(**arguments)
        assert torch.equal(got, expected)
        ours = unguarded(ours)
        if ours.shape[-1] in (_mask.CAUSAL, _mask.EVERYTHING):
            assert ours.untyped_storage().nbytes() == 4
        return ours.shape[-1]

    plain = {"q_length": 6, "kv_length": 6, "attention_mask": torch.ones(3, 6, dtype=torch.bool)}
    assert kind(mask_function=CAUSAL, **plain) == _mask.CAUSAL
    assert kind(mask_function=BIDIRECTIONAL, **plain) == _mask.EVERYTHING
    skip = {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": True}
    assert kind(mask_function=BIDIRECTIONAL, **plain, **skip) == _mask.EVERYTHING
    wide = masking_utils.sliding_window_causal_mask_function(6)
    assert kind(mask_function=wide, **plain) == _mask.CAUSAL
    assert kind(mask_function=PATTERNS["window"], **plain) == _mask.INTERVALS
    assert kind(mask_function=CAUSAL, q_length=1, kv_length=6, q_offset=5) == _mask.EVERYTHING
    # A static cache: keys after the query exist, but are not written yet.
    assert kind(mask_function=CAUSAL, q_length=1, kv_length=8, q_offset=5) == _mask.INTERVALS
    assert kind(mask_function=CAUSAL, q_length=6, kv_length=8) == _mask.INTERVALS
    one = {"q_length": 1, "kv_length": 1, "allow_is_causal_skip": False}
    assert kind(mask_function=CAUSAL, **one) == _mask.EVERYTHING


def test_unknown_function_is_evaluated(monkeypatch):
    """Tokens of a group see each other, on top of a causal mask. libattn evaluates this mask
    function a few rows at a time and finds intervals."""
    monkeypatch.setattr(_intervals, "_EVALUATED_AT_ONCE", 60)
    groups = torch.tensor([-1, -1, 0, 0, 0, -1, 1, 1, -1]).expand(3, -1)

    def same_group(batch_idx, head_idx, q_idx, kv_idx):
        one, other = groups[batch_idx, q_idx], groups[batch_idx, kv_idx]
        return (one == other) & (one >= 0)

    function = masking_utils.or_masks(CAUSAL, same_group)
    # With PyTorch 2.4, transformers accepts neither a caller's mask functions nor vmap.
    for use_vmap in (False, True)[: 1 if torch.__version__.startswith("2.4.") else 2]:
        ours, got, expected = both(
            q_length=9,
            kv_length=9,
            mask_function=function,
            attention_mask=torch.tensor(PADDINGS["left"]).bool(),
            use_vmap=use_vmap,
            allow_is_causal_skip=False,
        )
        assert unguarded(ours).dtype == torch.int32
        assert torch.equal(got, expected)


def test_no_interval_stays_a_mask():
    def every_other(batch_idx, head_idx, q_idx, kv_idx):
        return (q_idx + kv_idx) % 2 == 0

    arguments = {"batch_size": 3, "q_length": 5, "kv_length": 5, "mask_function": every_other}
    ours = _mask.visible_keys(**arguments, allow_is_causal_skip=False)
    assert ours.dtype == torch.bool
    assert torch.equal(ours, masking_utils.sdpa_mask(**arguments, allow_is_causal_skip=False))


def test_model_that_computes_with_the_mask_gets_one():
    ours = _mask.visible_keys(3, 5, 5, mask_function=CAUSAL, allow_is_causal_skip=False)
    assert ours.dtype == torch.bool
    assert ours.shape == (3, 1, 5, 5)


@pytest.mark.parametrize(
    "shape", [(3, 1, 7, 2), (3, 2, 8, 2), (3, 1, 5, 7), (2, 1, 8, 2), (3, 1, 8, 6), (1, 8, 2)]
)
def test_changed_mask_is_refused(shape):
    with pytest.raises(ValueError, match="the model changed it"):
        _mask.take_apart(torch.zeros(shape, dtype=torch.int32), 3, 5, 7)


@pytest.mark.parametrize(
    ("len_q", "len_kv", "window", "causal"),
    tuple(itertools.product((1, 4, 9), (9, 12), (None, 3), (True, False))),
)
def test_padding_mask_handed_to_a_layer(len_q, len_kv, window, causal):
    padding = torch.tensor(PADDINGS["left"])
    got = as_boolean(
        _mask.of_padding(padding, len_q, len_kv, causal, window), len_q, len_kv, causal=causal
    )
    row = torch.arange(len_q)[:, None] + 9 - len_q
    key = torch.arange(len_kv)
    expected = (key < 9) & (key <= (row if causal else row + 99))
    if window is not None:
        expected = expected & ((row - key).abs() < window)
    expected = expected & torch.nn.functional.pad(padding.bool(), (0, len_kv - 9))[:, None]
    assert torch.equal(got, expected)

"""Inputs of the zoo's models: text, images, spectrograms and waveforms, without padding or padded
on the left or the right. Audio is padded on the right only; the text with it, on either side."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from zoo import audio

LENGTHS = (14, 9, 5)
DECODER_LENGTHS = (10, 7, 4)
PADDINGS = ("none", "left", "right")


@dataclass
class Inputs:
    """Arguments of a forward pass and which positions of its result are real.

    real: bool [batch, positions] of the logits, or None where all are. tokens: the name of the
    argument with the tokens that the logits belong to.
    """

    arguments: dict[str, Tensor]
    real: Tensor | None = None
    tokens: str | None = None
    paddings: tuple[str, ...] = field(default=PADDINGS)


def mask_of(lengths: tuple[int, ...], padding: str, unit: int = 1) -> Tensor:
    """i64 [batch, positions], 1 = real."""
    n = max(lengths)
    mask = torch.zeros(len(lengths), n, dtype=torch.int64)
    for row, length in enumerate(lengths):
        length = n if padding == "none" else length
        mask[row, n - length if padding == "left" else 0 :][:length] = 1
    return mask.repeat_interleave(unit, dim=1)


def tokens(vocabulary: int, mask: Tensor, pad: int) -> Tensor:
    """Random tokens, without the special ones at both ends of the tiny vocabulary."""
    drawn = torch.randint(10, max(min(vocabulary, 78), 11), mask.shape)
    return torch.where(mask == 1, drawn, pad)


def _text(
    model: Any, padding: str, lengths: tuple[int, ...], **which: bool
) -> tuple[Tensor, Tensor]:
    config = model.config.get_text_config(**which)
    mask = mask_of(lengths, padding)
    vocabulary = getattr(config, "vocab_size", None) or 99
    pad = getattr(config, "pad_token_id", None)
    return tokens(vocabulary, mask, pad if isinstance(pad, int) and pad >= 0 else 0), mask


def _audio_mask(model: Any, padding: str) -> Tensor:
    """i64 [batch, frames or samples]; audio is padded on the right, as feature extractors do it."""
    frames = audio.frames_of(model)
    if padding == "none":
        return torch.ones(len(LENGTHS), frames, dtype=torch.int64)
    mask = mask_of(LENGTHS, "right", frames // max(LENGTHS))
    return F.pad(mask, (0, frames - mask.shape[1]))


def _with_placeholders(model: Any, padding: str) -> Inputs:
    """Audio and text with as many placeholders as the audio needs; both are padded."""
    name = audio.mask_name(model, with_text=True)
    audio_mask = _audio_mask(model, padding if name is not None else "none")
    counts = [audio.placeholders(model, one[None]) for one in audio_mask]
    torch.manual_seed(2)  # the search above uses the generator too
    rows = []
    for count in counts:
        text = torch.randint(10, 78, (6,)).tolist()
        rows.append([11, *[audio.audio_token(model)] * count, *text])
    mask = mask_of(tuple(len(row) for row in rows), "left" if padding == "left" else "right")
    ids = torch.zeros_like(mask)
    ids[mask == 1] = torch.tensor([token for row in rows for token in row])
    arguments = {"input_ids": ids, **audio.features(model, audio_mask)}
    if padding != "none":
        arguments["attention_mask"] = mask
    if name is not None:
        arguments[name] = audio_mask
    return Inputs(arguments, mask.bool(), "input_ids")


def make(model: Any, kind: str, padding: str) -> Inputs:
    """The inputs of a model of one of the five kinds; the same ones for the same arguments."""
    torch.manual_seed(2)
    parameters = inspect.signature(model.forward).parameters
    if kind == "vision":
        return _images(model)
    if kind in ("seq2seq", "audio") and audio.takes_both(model):
        return _with_placeholders(model, padding)
    result = Inputs({}, paddings=PADDINGS if "attention_mask" in parameters else ("none",))
    if kind != "audio" and model.main_input_name == "input_ids" or kind in ("causal", "masked"):
        result.arguments["input_ids"], mask = _text(model, padding, LENGTHS)
        result.real, result.tokens = mask.bool(), "input_ids"
        if padding != "none" and "attention_mask" in parameters:
            result.arguments["attention_mask"] = mask
    else:
        mask = _audio_mask(model, padding)
        result.arguments.update(audio.features(model, mask))
        name = audio.mask_name(model, with_text=False)
        if padding != "none" and name is not None:
            result.arguments[name] = mask
        result.real = None if padding == "none" else mask.bool()
        if not model.config.is_encoder_decoder:
            result.paddings = ("none",) if name is None else ("none", "right")
    if model.config.is_encoder_decoder and "decoder_input_ids" in parameters:
        result.arguments["decoder_input_ids"], mask = _text(
            model, padding, DECODER_LENGTHS, decoder=True
        )
        result.real, result.tokens = mask.bool(), "decoder_input_ids"
        if padding != "none" and "decoder_attention_mask" in parameters:
            result.arguments["decoder_attention_mask"] = mask
    return result


def _images(model: Any) -> Inputs:
    config = getattr(model.config, "vision_config", model.config)
    channels = getattr(config, "num_channels", 3)
    if "pixel_values" not in inspect.signature(model.forward).parameters:  # pixels as tokens
        ids, _ = _text(model, "none", LENGTHS)
        return Inputs({"input_ids": ids}, paddings=("none",))
    if "spatial_shapes" in inspect.signature(model.forward).parameters:  # images cut to patches
        mask = mask_of((16, 12), "right")
        pixels = torch.randn(*mask.shape, channels * config.patch_size**2)
        shapes = torch.tensor([[4, 4], [3, 4]])
        arguments = {"pixel_values": pixels, "pixel_attention_mask": mask, "spatial_shapes": shapes}
        return Inputs(arguments, paddings=("none",))
    size = getattr(config, "image_size", None) or 64
    size = size if isinstance(size, list | tuple) else (size, size)
    return Inputs({"pixel_values": torch.randn(2, channels, *size)}, paddings=("none",))


def real_positions(inputs: Inputs, logits: Tensor) -> Tensor:
    """bool [batch, positions] of the logits that are compared.

    An audio encoder has fewer frames than its input. A frame is real if all of its inputs are.
    """
    real = inputs.real
    if real is None or logits.ndim < 3 or logits.shape[0] != real.shape[0]:
        return torch.ones(logits.shape[: max(logits.ndim - 1, 1)], dtype=torch.bool)
    if real.shape[1] == logits.shape[1]:
        return real
    frames, n = logits.shape[1], real.shape[1]
    ends = torch.arange(1, frames + 1) * n // frames
    begins = torch.arange(frames) * n // frames
    sums = torch.nn.functional.pad(real.long().cumsum(1), (1, 0))
    return (sums[:, ends] - sums[:, begins]) == (ends - begins)

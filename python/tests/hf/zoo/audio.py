"""Inputs with audio in them: spectrograms and waveforms, and text with placeholders for audio."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor

FRAMES = 64
SAMPLES = 5600
MOST_PLACEHOLDERS = 70

# Model types with a spectrogram [batch, bins, frames] of a fixed number of frames; in all others
# it is [batch, frames, bins].
_BINS_FIRST = (
    "AudioFlamingo3",
    "GlmAsr",
    "MoonshineStreaming",
    "MusicFlamingo",
    "Qwen2Audio",
    "Qwen3ASR",
    "Voxtral",
    "Whisper",
)
_BINS = {"GraniteSpeech5ForCTC": 320, "FunAsrNanoForConditionalGeneration": 560}
_MASKS = ("input_features_mask", "feature_attention_mask", "padding_mask", "attention_mask")

_placeholders: dict[tuple[str, int, int], int] = {}


def _field(config: Any, *names: str) -> int | None:
    """The value of the first of these fields in the config or in its audio encoder's config."""
    owners = [config, *(getattr(config, key, None) for key in ("encoder_config", "audio_config"))]
    for name in names:
        for owner in owners:
            if isinstance(getattr(owner, name, None), int):
                return int(getattr(owner, name))
    return None


def frames_of(model: Any) -> int:
    """Frames or samples of the longest audio."""
    if model.main_input_name == "input_values" or "input_values" in _parameters(model):
        return SAMPLES
    window = _field(model.config, "n_window")
    if window is not None:
        return 2 * window
    positions = _field(model.config, "max_source_positions")
    return 2 * positions if bins_first(model) and positions else FRAMES


def _parameters(model: Any) -> Any:
    return inspect.signature(model.forward).parameters


def bins_first(model: Any) -> bool:
    """Whether a spectrogram is [batch, bins, frames]."""
    return type(model).__name__.startswith(_BINS_FIRST)


def features(model: Any, mask: Tensor) -> dict[str, Tensor]:
    """Random audio, 0 where mask [batch, frames or samples] is 0."""
    parameters = _parameters(model)
    if type(model).__name__.startswith("AST"):  # its field for a spectrogram has another name
        return {"input_values": torch.randn(len(mask), FRAMES, model.config.num_mel_bins)}
    if "input_values" in parameters:
        made = torch.randn(mask.shape) * mask
        channel = type(model).__name__.startswith("OmniASR")  # [batch, 1, samples]
        return {"input_values": made[:, None] if channel else made}
    name = type(model).__name__
    bins = model.config.d_model if name.startswith("Pop2Piano") else _BINS.get(name)
    bins = bins or _field(
        model.config,
        "feature_projection_input_dim",
        "input_feat_per_channel",
        "num_mel_bins",
        "feature_size",
        "input_dim",
    )
    made = torch.randn(*mask.shape, bins or 80) * mask[..., None]
    return {"input_features": made.mT.contiguous() if bins_first(model) else made}


def mask_name(model: Any, *, with_text: bool) -> str | None:
    """The argument that takes the mask of the audio."""
    names = _MASKS[:-1] if with_text else _MASKS
    return next((name for name in names if name in _parameters(model)), None)


def placeholders(model: Any, mask: Tensor) -> int:
    """The number of audio tokens for one audio with this mask [1, frames]: the smallest one that
    the model accepts."""
    key = (type(model).__name__, mask.shape[1], int(mask.sum()))
    if key in _placeholders:
        return _placeholders[key]
    arguments = features(model, mask)
    name = mask_name(model, with_text=True)
    if name is not None:
        arguments[name] = mask
    reason: Exception | None = None
    for count in range(1, MOST_PLACEHOLDERS):
        ids = torch.tensor([[11, *[audio_token(model)] * count, 12, 13]])
        try:
            with torch.no_grad():
                model(input_ids=ids, **arguments)
        except Exception as error:
            reason = reason or error
            continue
        _placeholders[key] = count
        return count
    raise ValueError(f"no number of audio tokens fits: {reason}")


def audio_token(model: Any) -> int:
    """The placeholder's token."""
    token = _field(model.config, "audio_token_id", "audio_token_index")
    assert token is not None
    return token


def takes_both(model: Any) -> bool:
    """Whether a model takes text with placeholders, and audio."""
    parameters = _parameters(model)
    return (
        "input_ids" in parameters
        and _field(model.config, "audio_token_id", "audio_token_index") is not None
        and bool({"input_features", "input_values"} & set(parameters))
    )

"""Settings of single architectures that the rule of build.py can't guess."""

from __future__ import annotations

from typing import Any

import transformers

_ASSISTANT = "takes the keys and values of the model that it assists"

# Model class: why there is no tiny model of it.
NOT_BUILT: dict[str, str] = {
    "DiaForConditionalGeneration": "its decoder takes codes of 9 channels",
    "DinatForImageClassification": "needs the package natten",
    "Gemma3nForConditionalGeneration": "needs the package timm",
    "Gemma4AssistantForCausalLM": _ASSISTANT,
    "Gemma4UnifiedAssistantForCausalLM": _ASSISTANT,
    "KyutaiSpeechToTextForConditionalGeneration": "needs a codec",
    "Nemotron3_5TranscribeForConditionalGeneration": "three models in one; no tiny config",
    "ShieldGemma2ForImageClassification": "needs images with text; inside is Gemma 3",
    "TimmWrapperForImageClassification": "needs the package timm",
    "VoxtralRealtimeForConditionalGeneration": "adds audio to each token, step by step",
    "xLSTMForCausalLM": "its cells reject tiny dimensions; it has no attention",
    "VibeVoiceAsrForConditionalGeneration": "its audio tokenizer is too large",
    "VibeVoiceForConditionalGeneration": "its audio tokenizer is too large",
}

DROP = object()  # a field that the config computes from others
_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
_ALTERNATING = ["sliding_attention", "full_attention"]


def _mamba(heads: int) -> dict[str, Any]:
    return {"mamba_n_heads": heads, "mamba_d_head": 32, "mamba_d_state": 16, "mamba_chunk_size": 8}


# Model or config class: fields of the tiny config, or a function of the number of heads.
FIELDS: dict[str, Any] = {
    "ASTConfig": {"max_length": 64},
    "BambaConfig": lambda heads: {**_mamba(heads), "attn_layer_indices": [1]},
    "FalconH1Config": lambda heads: {**_mamba(heads), "mamba_d_ssm": 32 * heads},
    "KyutaiSpeechToTextConfig": lambda heads: {"codec_config": {"upsample_groups": 16 * heads}},
    "MoonshineStreamingConfig": lambda heads: {"num_key_value_heads": heads},
    "MusicgenDecoderConfig": {"num_codebooks": 1},
    "MusicgenMelodyDecoderConfig": {"num_codebooks": 1},
    "Qwen3ASRConfig": {"audio_config": {"n_window": 50, "n_window_infer": 100}},
    "VoxtralConfig": {"audio_token_id": 90},
    "VoxtralRealtimeConfig": {"audio_token_id": 90},
    "Qwen4ExpTextConfig": {
        "indexer_n_heads": 2,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 16,
        "indexer_budget": 8,
        "indexer_compress_ratio": 4,
    },
    "ReformerConfig": lambda heads: {
        "axial_pos_embds": False,
        "attn_layers": ["local", "lsh"],
        "num_buckets": 4,
    },
    "ZambaConfig": lambda heads: {
        "attention_hidden_size": 32 * heads,
        "attention_head_dim": 32,
        "num_hidden_layers": 4,
        "layers_block_type": ["linear_attention", "hybrid"] * 2,
        "n_mamba_heads": 2,
        "mamba_dt_rank": 4,
    },
    "Zamba2Config": lambda heads: {
        "attention_hidden_size": 32 * heads,
        "attention_head_dim": 32,
        "n_mamba_heads": 2,
        "mamba_headdim": 16 * heads,
        "mamba_ngroups": 1,
        "num_hidden_layers": 4,
        "layers_block_type": ["linear_attention", "hybrid"] * 2,
        "hybrid_layer_ids": DROP,
    },
    "xLSTMConfig": {"qk_dim_factor": 1.0, "v_dim_factor": 1.0},
    "RecurrentGemmaConfig": {"block_types": ["recurrent", "attention"]},
    "SwinConfig": lambda heads: {
        "num_heads": [heads, heads],
        "depths": [1, 1],
        "embed_dim": 16 * heads,
        "window_size": 4,
    },
    "XmodConfig": {"default_language": "en_XX"},
    "MobileBertConfig": lambda heads: {
        "true_hidden_size": 16 * heads,
        "intra_bottleneck_size": 16 * heads,
    },
    "CohereCompassTextConfig": {
        "rope_parameters": {"sliding_attention": _ROPE, "full_attention": _ROPE}
    },
    "FunAsrNanoConfig": lambda heads: {
        "adaptor_config": {"intermediate_size": 4 * heads},
        "encoder_config": {"input_size": 560},
    },
    "GraniteMoeHybridConfig": lambda heads: {
        **_mamba(heads),
        "layer_types": ["linear_attention", "full_attention"],
    },
    "BltConfig": {"num_hidden_layers": 2},
    "DbrxConfig": {"attn_config": {"rope_theta": 10000.0, "clip_qkv": 8.0}},
    "DeepseekV2Config": {"num_experts_per_tok": 2},
    "Dots1Config": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "EfficientNetConfig": {"hidden_dim": 2560},
    "DoryConfig": {
        "layer_types": DROP,
        "num_hidden_layers": 4,
        "n_input_layers": 1,
        "n_recurrent_layers": 2,
        "n_output_layers": 1,
    },
    "HrmTextConfig": {"num_layers_per_stack": DROP, "num_hidden_layers": 2, "layer_types": DROP},
    "JambaConfig": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "Lfm2MoeConfig": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "Mamba2Config": lambda heads: {"num_heads": heads, "head_dim": 32, "n_groups": 1},
}

# Model class: the implementation that it is compared with instead of eager, and why.
REFERENCES: dict[str, tuple[str, str]] = {
    "SeamlessM4Tv2ForSpeechToText": (
        "sdpa",
        "eager adds the boolean mask of its speech encoder to the scores as 0 and 1",
    ),
}


def _encoder_decoder(heads: int) -> Any:
    made = _bert(heads), _bert(heads, is_decoder=True, add_cross_attention=True)
    config = transformers.EncoderDecoderConfig.from_encoder_decoder_configs(*made)
    config.decoder_start_token_id, config.pad_token_id = 1, 0
    return config


def _bert(heads: int, **options: Any) -> Any:
    return transformers.BertConfig(
        vocab_size=99,
        hidden_size=16 * heads,
        intermediate_size=32 * heads,
        num_hidden_layers=2,
        num_attention_heads=heads,
        **options,
    )


def _speech_encoder_decoder(heads: int) -> Any:
    encoder = transformers.Wav2Vec2Config(
        hidden_size=16 * heads,
        intermediate_size=32 * heads,
        num_hidden_layers=2,
        num_attention_heads=heads,
        conv_dim=[32] * 7,
    )
    decoder = _bert(heads, is_decoder=True, add_cross_attention=True)
    config = transformers.SpeechEncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder)
    config.decoder_start_token_id, config.pad_token_id = 1, 0
    return config


# Model class: its config, from the number of heads.
CONFIGS: dict[str, Any] = {
    "EncoderDecoderModel": _encoder_decoder,
    "SpeechEncoderDecoderModel": _speech_encoder_decoder,
}

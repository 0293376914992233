"""Small models of Hugging Face's transformers, built from configurations. Nothing is downloaded.

Without dropout, because a table compares weights. With labels in the data, they return their own loss.
"""

_SIZES = {"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
_TOKENS = {"vocab_size": 16, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
_GROUPED = {**_SIZES, **_TOKENS, "num_attention_heads": 4, "num_key_value_heads": 2}


def _build(model, config, **options):
    import transformers

    made = getattr(transformers, config)(**options)
    return getattr(transformers, model)(made).double()


def _gpt2():
    dropouts = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    sizes = {"n_embd": 8, "n_layer": 2, "n_head": 2, "n_positions": 16}
    return _build("GPT2LMHeadModel", "GPT2Config", **_TOKENS, **sizes, **dropouts)


def _llama():
    return _build("LlamaForCausalLM", "LlamaConfig", **_GROUPED)


def _mistral():
    return _build("MistralForCausalLM", "MistralConfig", **_GROUPED, sliding_window=4)


def _qwen():
    return _build("Qwen2ForCausalLM", "Qwen2Config", **_GROUPED, tie_word_embeddings=True)


def _gemma():
    return _build("GemmaForCausalLM", "GemmaConfig", **_GROUPED, head_dim=4)


def _bert():
    return _build("BertForMaskedLM", "BertConfig", **_SIZES, **_TOKENS, **_NO_DROPOUT)


def _t5():
    sizes = {"d_model": 8, "d_kv": 4, "d_ff": 16, "num_layers": 2, "num_heads": 2, "dropout_rate": 0.0}
    return _build("T5ForConditionalGeneration", "T5Config", vocab_size=16, decoder_start_token_id=0, **sizes)


def _vit():
    return _build(
        "ViTForImageClassification",
        "ViTConfig",
        **_SIZES,
        **_NO_DROPOUT,
        image_size=16,
        patch_size=8,
        num_labels=3,
    )


def _whisper():
    layers = {
        f"{side}_{name}": 2 for side in ("encoder", "decoder") for name in ("layers", "attention_heads")
    }
    widths = {"d_model": 8, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "num_mel_bins": 4}
    lengths = {"max_source_positions": 6, "max_target_positions": 8}
    return _build(
        "WhisperForConditionalGeneration",
        "WhisperConfig",
        **_TOKENS,
        **layers,
        **widths,
        **lengths,
        decoder_start_token_id=1,
        dropout=0.0,
        suppress_tokens=None,
        begin_suppress_tokens=None,
    )


MODELS = {
    "GPT-2": _gpt2,
    "Llama": _llama,
    "Mistral": _mistral,
    "Qwen": _qwen,
    "Gemma": _gemma,
    "BERT": _bert,
    "T5": _t5,
    "ViT": _vit,
    "Whisper": _whisper,
}

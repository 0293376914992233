"""Models from the config.json of Hugging Face's transformers: their sizes, as shapes only.

An unknown field is refused, because it might change the shapes. Fields that change neither shapes nor operations,
such as the ids of special tokens, are ignored.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from paceline.errors import ConfigurationError, UnknownNameError
from paceline.models.gpt import GPT
from paceline.task.task import Task

_IGNORED = frozenset(
    {
        "_name_or_path",
        "activation_function",
        "architectures",
        "attention_dropout",
        "attention_probs_dropout_prob",
        "attn_pdrop",
        "bos_token_id",
        "classifier_dropout",
        "dtype",
        "embd_pdrop",
        "eos_token_id",
        "gradient_checkpointing",
        "hidden_act",
        "hidden_dropout_prob",
        "id2label",
        "initializer_range",
        "label2id",
        "layer_norm_eps",
        "layer_norm_epsilon",
        "layer_types",
        "max_window_layers",
        "model_type",
        "n_ctx",
        "n_special",
        "output_attentions",
        "output_hidden_states",
        "pad_token_id",
        "position_embedding_type",
        "predict_special_tokens",
        "pretraining_tp",
        "reorder_and_upcast_attn",
        "resid_pdrop",
        "return_dict",
        "rms_norm_eps",
        "rope_parameters",
        "rope_scaling",
        "rope_theta",
        "scale_attn_by_inverse_layer_idx",
        "scale_attn_weights",
        "sliding_window",
        "summary_activation",
        "summary_first_dropout",
        "summary_proj_to_labels",
        "summary_type",
        "summary_use_proj",
        "task_specific_params",
        "torch_dtype",
        "transformers_version",
        "type_vocab_size",
        "use_cache",
        "use_sliding_window",
    }
)
"""Fields that change neither the shapes nor the number of operations. Sliding windows are counted as full
attention."""

_FALSE = frozenset({"add_cross_attention", "is_decoder", "is_encoder_decoder"})
"""Fields that are ignored if they are false. They would change the layers."""

_COMMON = {
    "num_hidden_layers": "layers",
    "hidden_size": "hidden",
    "num_attention_heads": "heads",
    "intermediate_size": "ffn",
    "vocab_size": "vocabulary",
    "max_position_embeddings": "sequence",
}
_GATED = _COMMON | {
    "num_key_value_heads": "key_heads",
    "head_dim": "head_size",
    "tie_word_embeddings": "tied",
    "attention_bias": "attention_bias",
    "mlp_bias": "bias",
}
_GPT_2 = {
    "n_layer": "layers",
    "n_embd": "hidden",
    "n_head": "heads",
    "n_inner": "ffn",
    "vocab_size": "vocabulary",
    "n_positions": "sequence",
    "tie_word_embeddings": "tied",
}
_LLAMA: dict[str, Any] = {"gated": True, "norm": "rms", "positions": "rotary", "bias": False, "tied": False}
_LLAMA |= {"key_bias": False, "out_bias": False}

_FAMILIES: Mapping[str, tuple[dict[str, str], dict[str, Any]]] = {
    "llama": (_GATED, _LLAMA),
    "mistral": (_GATED, _LLAMA),
    "qwen2": (_GATED, _LLAMA | {"key_bias": True}),
    "qwen3": (_GATED, _LLAMA),
    "gpt2": (_GPT_2, {"tied": True}),
    "bert": (_COMMON | {"tie_word_embeddings": "tied"}, {"causal": False, "tied": True}),
}
"""Fields that are arguments of `GPT`, and the arguments that are not in the file, by model type."""

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def from_config(
    path: str | Path,
    *,
    batch_size: int,
    sequence: int | None = None,
    dtype: torch.dtype | None = None,
    recompute: bool | str = False,
    optimizer: Callable[[Any], torch.optim.Optimizer] | None = None,
) -> Task:
    """Return the task of a model whose config.json is at `path`: Llama, Mistral, Qwen, GPT-2 or BERT.

    `path` is the file, or the folder that contains it. `sequence` defaults to the longest sequence of the model, and
    `dtype` to that of the file. See `GPT` for the other arguments.
    """
    found = _read(Path(path))
    kind = found.get("model_type")
    if not isinstance(kind, str) or kind not in _FAMILIES:
        raise UnknownNameError("model_type", str(kind), _FAMILIES)
    names, given = _FAMILIES[kind]
    unset = {name for name in _FALSE if not found.get(name)}
    unknown = sorted(set(found) - set(names) - _IGNORED - unset)
    if unknown:
        remedy = "remove them if they change no shapes, or describe the model with pl.models.GPT"
        raise ConfigurationError(
            "config.json", f"must have only known fields of a {kind} model", ", ".join(unknown), remedy
        )
    words = {name: found[field] for field, name in names.items() if found.get(field) is not None}
    _check_complete(words, names, kind)
    if "attention_bias" in words:
        words["key_bias"] = words["out_bias"] = words.pop("attention_bias")
    words = given | words | ({} if sequence is None else {"sequence": sequence})
    return GPT(
        **words,
        batch_size=batch_size,
        dtype=_dtype_of(found) if dtype is None else dtype,
        recompute=recompute,
        optimizer=optimizer,
    )


def _read(path: Path) -> dict[str, Any]:
    file = path / "config.json" if path.is_dir() else path
    remedy = "name a config.json of Hugging Face's transformers, or its folder"
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            "path", f"must be a readable JSON file ({error})", str(file), remedy
        ) from None
    if not isinstance(found, dict):
        raise ConfigurationError("path", "must contain a JSON object", str(file), remedy)
    return found


def _check_complete(words: Mapping[str, Any], names: Mapping[str, str], kind: str) -> None:
    needed = {"layers", "hidden", "heads", "vocabulary", "sequence"} - set(words)
    if needed:
        fields = sorted(field for field, name in names.items() if name in needed)
        bound = f"must have all sizes of a {kind} model"
        raise ConfigurationError("config.json", bound, f"no {', '.join(fields)}", "add them")


def _dtype_of(found: Mapping[str, Any]) -> torch.dtype:
    name = str(found.get("torch_dtype") or found.get("dtype") or "float32")
    if name not in _DTYPES:
        raise ConfigurationError("torch_dtype", f"must be one of {', '.join(_DTYPES)}", name, "give dtype=…")
    return _DTYPES[name]

import json

import pytest
import torch
from refusals import refused

import paceline as pl

LLAMA_2_7B = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-05,
    "tie_word_embeddings": False,
    "torch_dtype": "float16",
}
MISTRAL_7B = LLAMA_2_7B | {
    "model_type": "mistral",
    "intermediate_size": 14336,
    "num_key_value_heads": 8,
    "sliding_window": 4096,
    "torch_dtype": "bfloat16",
}
QWEN_2_7B = MISTRAL_7B | {
    "model_type": "qwen2",
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "vocab_size": 152064,
}
GPT_2 = {
    "model_type": "gpt2",
    "n_layer": 12,
    "n_embd": 768,
    "n_head": 12,
    "n_inner": None,
    "vocab_size": 50257,
    "n_positions": 1024,
}


def written(folder, config):
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(
    ("config", "published"),
    [
        (LLAMA_2_7B, 6_738_415_616),
        (MISTRAL_7B, 7_241_732_096),
        (QWEN_2_7B, 7_615_616_512),
        (GPT_2, 124_439_808),
    ],
    ids=["llama-2", "mistral", "qwen-2", "gpt-2"],
)
def test_a_model_has_its_published_number_of_parameters(tmp_path, config, published):
    task = pl.models.from_config(written(tmp_path, config), batch_size=4)
    assert sum(parameter.numel() for parameter in task.model.parameters()) == published


def test_the_dtype_and_the_sequence_are_those_of_the_file_unless_given(tmp_path):
    path = written(tmp_path, MISTRAL_7B) / "config.json"
    task = pl.models.from_config(path, batch_size=4)
    assert next(task.model.parameters()).dtype == torch.bfloat16
    assert task.data[0].shape == (4, 4096)
    task = pl.models.from_config(path, batch_size=4, sequence=128, dtype=torch.float32)
    assert (next(task.model.parameters()).dtype, task.data[0].shape) == (torch.float32, (4, 128))


def test_bert_attends_in_both_directions(tmp_path):
    sizes = {name: LLAMA_2_7B[name] for name in ("hidden_size", "num_hidden_layers", "num_attention_heads")}
    sizes |= {"intermediate_size": 64, "vocab_size": 30522, "max_position_embeddings": 512}
    task = pl.models.from_config(written(tmp_path, sizes | {"model_type": "bert"}), batch_size=1)
    assert not task.model.blocks[0].attention.causal


@pytest.mark.parametrize(
    ("change", "argument"),
    [
        ({"model_type": "mamba"}, "model_type"),
        ({"num_local_experts": 8}, "config.json"),
        ({"add_cross_attention": True}, "config.json"),
        ({"hidden_size": None}, "config.json"),
        ({"torch_dtype": "int8"}, "torch_dtype"),
    ],
)
def test_what_is_not_known_is_refused(tmp_path, change, argument):
    with refused(argument):
        pl.models.from_config(written(tmp_path, LLAMA_2_7B | change), batch_size=1)


def test_a_file_that_is_not_json_is_refused(tmp_path):
    (tmp_path / "config.json").write_text("{")
    with refused("path"):
        pl.models.from_config(tmp_path, batch_size=1)
    with refused("path"):
        pl.models.from_config(tmp_path / "none.json", batch_size=1)

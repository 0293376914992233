"""Numbers of parameters against the models of transformers, from the config.json that transformers writes."""

import pytest
import torch

import paceline as pl

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.slow  # importing a model takes seconds

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "vocab_size": 512,
    "max_position_embeddings": 128,
}
SHARED = {"num_key_value_heads": 2}
GPT_2 = {"n_layer": 3, "n_embd": 64, "n_head": 4, "vocab_size": 512, "n_positions": 128}


def counts(kind, config, tmp_path):
    """Return the number of parameters here and in transformers."""
    with torch.device("meta"):
        theirs = getattr(transformers, kind)(config)
    theirs.tie_weights()
    config.architectures = [kind]
    config.save_pretrained(tmp_path)
    ours = pl.models.from_config(tmp_path, batch_size=2).model
    return tuple(sum(each.numel() for each in model.parameters()) for model in (ours, theirs))


@pytest.mark.parametrize(
    ("family", "words"),
    [
        ("Llama", SIZES),
        ("Llama", SIZES | SHARED | {"head_dim": 24}),
        ("Llama", SIZES | {"attention_bias": True}),
        ("Llama", SIZES | {"mlp_bias": True}),
        ("Llama", SIZES | {"tie_word_embeddings": True}),
        ("Mistral", SIZES | SHARED),
        ("Qwen2", SIZES | SHARED),
    ],
)
def test_models_for_causal_language_have_as_many_parameters(family, words, tmp_path):
    config = getattr(transformers, f"{family}Config")(**words)
    ours, theirs = counts(f"{family}ForCausalLM", config, tmp_path)
    assert ours == theirs


@pytest.mark.parametrize("inner", [None, 100])
def test_gpt_2_has_as_many_parameters(inner, tmp_path):
    config = transformers.GPT2Config(**GPT_2, n_inner=inner, bos_token_id=0, eos_token_id=0)
    ours, theirs = counts("GPT2LMHeadModel", config, tmp_path)
    assert ours == theirs


def test_qwen_3_lacks_the_norms_of_queries_and_keys(tmp_path):
    config = transformers.Qwen3Config(**SIZES, **SHARED, head_dim=32, tie_word_embeddings=True)
    ours, theirs = counts("Qwen3ForCausalLM", config, tmp_path)
    assert theirs - ours == SIZES["num_hidden_layers"] * 2 * 32


def test_bert_lacks_its_token_types_and_the_transform_of_its_head(tmp_path):
    ours, theirs = counts("BertForMaskedLM", transformers.BertConfig(**SIZES), tmp_path)
    hidden, vocabulary = SIZES["hidden_size"], SIZES["vocab_size"]
    transform = hidden**2 + 3 * hidden + vocabulary
    token_types = 2 * hidden
    assert theirs - ours == transform + token_types

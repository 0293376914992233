import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

import paceline as pl
from paceline.model.activations import Activations
from paceline.model.memory.fused_attention import FusedAttention

SIZES = {"layers": 2, "hidden": 64, "heads": 4, "sequence": 256, "vocabulary": 32, "batch_size": 2}
PAIRS = 2 * 4 * 256 * 256  # of tokens, in the heads of one block and the samples of a worker


def run_of(spec="all-reduce", **changes):
    task = pl.models.GPT(**SIZES | changes)
    return pl.train(task, spec, pl.Simulated(workers=1, math="none", device="A100"), steps=1)


@pytest.mark.parametrize("spec", ["all-reduce", "hybrid:microbatches=1"])
def test_a_matrix_of_all_pairs_takes_memory_and_time_or_neither(spec):
    fused, plain = (run_of(spec, fused_attention=each) for each in (True, False))
    assert (
        plain.memory[0]["activations"] - fused.memory[0]["activations"] > 0.9 * 2 * 4 * PAIRS
    )  # a fused attention stores its output, too
    longer = run_of(spec, sequence=512)
    assert longer.memory[0]["activations"] <= 2.01 * fused.memory[0]["activations"]
    # Each matrix is written and read at least once in a forward pass, and a gradient costs three of them.
    assert (
        plain.step_seconds - fused.step_seconds > 3 * 2 * 2 * 4 * PAIRS / pl.devices.A100.memory_bytes_per_s
    )


def test_without_data_it_stores_what_a_processor_stores():
    def stored(device):
        given = [torch.ones(2, 3, 16, 8, device=device).requires_grad_() for _ in range(3)]
        counted = Activations()
        with counted.counting(), FusedAttention():
            scaled_dot_product_attention(*given, is_causal=True)
        return counted.clear()

    assert stored("meta") == stored("cpu")


def test_both_forms_of_attention_compute_the_same():
    fused, plain = (pl.models.GPT(**SIZES, fused_attention=each).model for each in (True, False))
    fused, plain = (model.to_empty(device="cpu") for model in (fused, plain))
    for parameter in fused.parameters():
        nn.init.normal_(parameter, std=0.1)
    plain.load_state_dict(fused.state_dict())
    tokens = torch.arange(512).reshape(2, 256) % 32
    torch.testing.assert_close(fused(tokens), plain(tokens))

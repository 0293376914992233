"""An unmodified Hugging Face text classifier: its model, its batches, its loss.

The model is a small BERT with random weights. The texts are generated here: a text has class 1 if it contains the word
7 more often than the word 8. Nothing is downloaded. For your own model and dataset, change `model` and `Texts`.

    pip install transformers
    paceline train examples/text_classifier.py --strategy all-reduce --workers 2 --epochs 4
"""

from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import paceline as pl

try:
    from transformers import BertConfig, BertForSequenceClassification
except ImportError as missing:
    raise SystemExit("this example needs transformers: pip install transformers") from missing

WORDS, LENGTH, PADDING = 50, 16, 0


class Texts(Dataset):
    """Dictionaries like those from a tokenizer. Texts have different lengths, and are padded."""

    def __init__(self, count: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.words = torch.randint(5, 12, (count, LENGTH), generator=generator)
        lengths = torch.randint(LENGTH // 2, LENGTH + 1, (count, 1), generator=generator)
        self.is_there = torch.arange(LENGTH) < lengths
        self.words[~self.is_there] = PADDING
        self.labels = ((self.words == 7).sum(1) > (self.words == 8).sum(1)).long()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, number: int) -> dict[str, Tensor]:
        return {
            "input_ids": self.words[number],
            "attention_mask": self.is_there[number].long(),
            "labels": self.labels[number],
        }


def model() -> nn.Module:
    return BertForSequenceClassification(
        BertConfig(
            vocab_size=WORDS,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=64,
            max_position_embeddings=LENGTH,
            pad_token_id=PADDING,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
    )


task = pl.Task(
    model=model,
    data=partial(Texts, 2000, seed=0),
    optimizer=partial(torch.optim.AdamW, lr=2e-3),
    batch_size=64,
    test=partial(Texts, 500, seed=1),
    metric="accuracy",
    target=0.95,
)

if __name__ == "__main__":
    stop = pl.callbacks.EarlyStopping(patience=5)
    run = pl.train(task, "all-reduce", pl.Local(workers=2), epochs=8, evaluate_every=16, callbacks=[stop])
    print(f"accuracy {run.metric:.1%} after {run.steps} steps")

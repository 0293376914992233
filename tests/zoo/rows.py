"""Rows of the table of models: a task for each model, in double precision."""

from dataclasses import dataclass

import torch
from torch.nn import functional

import paceline as pl
from paceline.testing.tasks import numbers
from zoo import generative, hugging_face, images, more_images, sequences

SAMPLES, BATCH, CLASSES, VOCABULARY, SIZE = 24, 8, 3, 16, 16


@dataclass(frozen=True)
class Row:
    """A model of the table."""

    task: object
    """Function that returns the task."""
    uses_batch_norm: bool = False
    tolerance: float = 1e-12
    """Largest difference of weights that counts as equal."""


def sgd(params):
    return torch.optim.SGD(params, lr=0.005)


def integers(*shape, most=VOCABULARY, seed=0):
    return torch.randint(0, most, shape, generator=torch.Generator().manual_seed(seed))


def a_task(model, data, loss=None, **changes):
    given = {"model": model, "data": data, "loss": loss, "optimizer": sgd, "batch_size": BATCH}
    return pl.Task(**(given | changes))


def labels():
    return torch.arange(SAMPLES) % CLASSES


def pictures():
    """Noise, brighter in the channel of the class."""
    shift = functional.one_hot(labels(), CLASSES).double().view(SAMPLES, CLASSES, 1, 1)
    return numbers(SAMPLES, CLASSES, SIZE, SIZE, seed=4) + 2 * shift


def classification(model):
    def task():
        return a_task(lambda: model().double(), (pictures(), labels()), functional.cross_entropy)

    return Row(task, uses_batch_norm=True)


def segmentation():
    data = pictures(), integers(SAMPLES, SIZE, SIZE, most=CLASSES)
    return a_task(lambda: images.UNet().double(), data, functional.cross_entropy)


def token_loss(logits, targets):
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def language(model, loss=None):
    def task():
        tokens = integers(SAMPLES, 7, seed=3)
        return a_task(lambda: model().double(), (tokens[:, :-1], tokens[:, 1:]), loss)

    return Row(task)


class Named(torch.utils.data.Dataset):
    """Samples as dictionaries."""

    def __init__(self, **tensors):
        self.tensors = tensors

    def __len__(self):
        return SAMPLES

    def __getitem__(self, number):
        return {name: tensor[number] for name, tensor in self.tensors.items()}


def of_hugging_face(name):
    def task():
        tokens = integers(SAMPLES, 6, seed=3)
        data = {"input_ids": tokens, "labels": tokens}
        if name == "T5":
            data = {"input_ids": tokens, "labels": integers(SAMPLES, 5, seed=4)}
        elif name == "ViT":
            data = {"pixel_values": pictures(), "labels": labels()}
        elif name == "Whisper":
            data = {"input_features": numbers(SAMPLES, 4, 12), "labels": integers(SAMPLES, 5, seed=4)}
        return a_task(hugging_face.MODELS[name], Named(**data))

    # Most of these models compute norms in float32, with any dtype of parameters.
    return Row(task, tolerance=1e-9)


def vae():
    return a_task(lambda: generative.VAE().double(), (numbers(SAMPLES, 8, 8), numbers(SAMPLES, 4, seed=1)))


def gan():
    models = {"generator": generative.generator, "discriminator": generative.discriminator}
    return pl.Task(
        model=models,
        data=(numbers(SAMPLES, 8, 8), numbers(SAMPLES, 4, seed=1)),
        step=generative.gan_step,
        turns=("discriminator", "generator"),
        optimizer=dict.fromkeys(models, sgd),
        batch_size=BATCH,
    )


def graphs():
    nodes, edges = numbers(SAMPLES, 5, 4), integers(SAMPLES, 9, 2, most=5)
    targets = torch.arange(SAMPLES) % 2
    return a_task(
        lambda: sequences.MessagePassing().double(), (nodes, edges, targets), functional.cross_entropy
    )


ROWS = {
    "nanoGPT": language(sequences.NanoGPT),
    **{name: of_hugging_face(name) for name in hugging_face.MODELS},
    "LSTM language model": language(sequences.LSTMLanguageModel, token_loss),
    "ResNet18": classification(images.ResNet18),
    "ResNet50": classification(images.ResNet50),
    "MobileNetV2": classification(images.MobileNetV2),
    "DenseNet": classification(images.DenseNet),
    "U-Net": Row(segmentation, uses_batch_norm=True),
    "VAE": Row(vae),
    "GAN": Row(gan),
    "message passing": Row(graphs),
    "frozen GPT with adapters": language(sequences.Adapted),
}

TRANSFORMERS = ("nanoGPT", *hugging_face.MODELS, "frozen GPT with adapters")


def googlenet():
    def loss(heads, target):
        return sum(functional.cross_entropy(head, target) for head in heads)

    data = numbers(SAMPLES, 3, 64, 64, seed=4), labels()
    return a_task(lambda: more_images.GoogLeNet().double(), data, loss)


def mixer():
    data = pictures(), labels()
    return a_task(lambda: more_images.Mixer(size=SIZE).double(), data, functional.cross_entropy)


def translation():
    data = integers(SAMPLES, 6), integers(SAMPLES, 5, seed=1), integers(SAMPLES, 5, seed=2)
    return a_task(lambda: sequences.Seq2Seq().double(), data, token_loss)


MORE = {
    "ShuffleNetV2": classification(more_images.ShuffleNetV2),
    "GoogLeNet": Row(googlenet, uses_batch_norm=True),
    "EfficientNet": classification(more_images.EfficientNet),
    "Mixer": Row(mixer),
    "Transformer-XL": language(sequences.TransformerXL, token_loss),
    "nn.Transformer": Row(translation),
}
"""Models that are tested, but not in the table."""

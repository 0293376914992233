"""Generative models: a variational autoencoder, and a GAN with its own training step."""

import torch
from torch import nn
from torch.nn import functional


class VAE(nn.Module):
    """It returns its own loss: the negative evidence lower bound. https://arxiv.org/abs/1312.6114

    The noise is an input, so that a step is the same on any number of workers.
    """

    def __init__(self, pixels=64, hidden=16, latent=4):
        super().__init__()
        self.encoder = nn.Linear(pixels, hidden)
        self.mean, self.log_variance = nn.Linear(hidden, latent), nn.Linear(hidden, latent)
        self.decoder = nn.Sequential(nn.Linear(latent, hidden), nn.ReLU(), nn.Linear(hidden, pixels))

    def forward(self, image, noise):
        x = image.flatten(1)
        hidden = functional.relu(self.encoder(x))
        mean, log_variance = self.mean(hidden), self.log_variance(hidden)
        made = self.decoder(mean + noise * torch.exp(0.5 * log_variance))
        error = functional.mse_loss(made, x, reduction="none").sum(1)
        divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(1)
        return {"loss": (error + divergence).mean(), "image": made}


def generator():
    return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 64)).double()


def discriminator():
    return nn.Sequential(nn.Linear(64, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1)).double()


def gan_step(model, batch):
    """The discriminator's turn, then the generator's. https://arxiv.org/abs/1406.2661"""
    image, noise = batch
    made = model["generator"](noise)
    judged = model["discriminator"](image.flatten(1)), model["discriminator"](made.detach())
    yield "discriminator", functional.softplus(-judged[0]).mean() + functional.softplus(judged[1]).mean()
    yield "generator", functional.softplus(-model["discriminator"](made)).mean()

"""More networks for images, which are not in the table."""

import torch
from torch import nn
from torch.nn import functional

from zoo.images import convolution


class Shuffled(nn.Module):
    """Half of the channels bypass the block, then the halves are interleaved. https://arxiv.org/abs/1807.11164"""

    def __init__(self, width):
        super().__init__()
        half = width // 2
        self.body = nn.Sequential(
            convolution(half, half),
            nn.Conv2d(half, half, 3, padding=1, groups=half, bias=False),
            nn.BatchNorm2d(half),
            convolution(half, half),
        )

    def forward(self, x):
        left, right = x.chunk(2, dim=1)
        x = torch.cat((left, self.body(right)), dim=1)
        batch, channels, height, width = x.size()
        x = x.view(batch, 2, channels // 2, height, width)
        return torch.transpose(x, 1, 2).contiguous().view(batch, channels, height, width)


class ShuffleNetV2(nn.Module):
    def __init__(self, blocks=4, width=8, classes=3):
        super().__init__()
        self.stem = convolution(3, width, 3)
        self.blocks = nn.Sequential(*(Shuffled(width) for _ in range(blocks)))
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x)).mean([2, 3]))


class Inception(nn.Module):
    """Four branches beside each other. https://arxiv.org/abs/1409.4842"""

    def __init__(self, inputs, width):
        super().__init__()
        self.branches = nn.ModuleList(
            [
                convolution(inputs, width),
                nn.Sequential(convolution(inputs, width), convolution(width, width, 3)),
                nn.Sequential(convolution(inputs, width), convolution(width, width, 5)),
                nn.Sequential(nn.MaxPool2d(3, 1, 1, ceil_mode=True), convolution(inputs, width)),
            ]
        )

    def forward(self, x):
        return torch.cat([branch(x) for branch in self.branches], 1)


class GoogLeNet(nn.Module):
    """With its two auxiliary heads: it returns three tensors in training."""

    def __init__(self, blocks=9, width=2, classes=3):
        super().__init__()
        self.stem = nn.Sequential(
            convolution(3, width, 7, stride=2),
            nn.MaxPool2d(3, 2, ceil_mode=True),
            convolution(width, 4 * width, 3),
            nn.MaxPool2d(3, 2, ceil_mode=True),
        )
        self.blocks = nn.ModuleList(Inception(4 * width, width) for _ in range(blocks))
        self.heads = nn.ModuleList(nn.Linear(4 * width, classes) for _ in range(3))

    def forward(self, x):
        x = self.stem(x)
        made = []
        for number, block in enumerate(self.blocks):
            if number in (2, 7):
                x = functional.max_pool2d(x, 3, 2, ceil_mode=True)
            x = block(x)
            if number in (2, 5, len(self.blocks) - 1):
                made.append(self.heads[len(made)](x.mean((2, 3))))
        return tuple(made)


class Squeezed(nn.Module):
    """An inverted bottleneck with squeeze and excitation. https://arxiv.org/abs/1905.11946"""

    def __init__(self, width, factor=2):
        super().__init__()
        inside = factor * width
        self.widen = convolution(width, inside, activation=nn.SiLU)
        self.depthwise = convolution(inside, inside, 3, groups=inside, activation=nn.SiLU)
        self.squeeze, self.excite = nn.Conv2d(inside, 2, 1), nn.Conv2d(2, inside, 1)
        self.narrow = nn.Sequential(nn.Conv2d(inside, width, 1, bias=False), nn.BatchNorm2d(width))

    def forward(self, x):
        h = self.depthwise(self.widen(x))
        scale = torch.sigmoid(
            self.excite(functional.silu(self.squeeze(functional.adaptive_avg_pool2d(h, 1))))
        )
        return x + self.narrow(h * scale)


class EfficientNet(nn.Module):
    def __init__(self, blocks=3, width=4, classes=3):
        super().__init__()
        self.features = nn.Sequential(convolution(3, width, 3), *(Squeezed(width) for _ in range(blocks)))
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        return self.head(self.features(x).mean([2, 3]))


class MixerBlock(nn.Module):
    """Perceptrons over patches, then over channels. https://arxiv.org/abs/2105.01601"""

    def __init__(self, patches, width):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.over_patches = nn.Sequential(nn.Linear(patches, 12), nn.GELU(), nn.Linear(12, patches))
        self.over_channels = nn.Sequential(nn.Linear(width, 16), nn.GELU(), nn.Linear(16, width))

    def forward(self, x):
        x = x + self.over_patches(self.norms[0](x).transpose(1, 2)).transpose(1, 2)
        return x + self.over_channels(self.norms[1](x))


class Mixer(nn.Module):
    def __init__(self, size=8, patch=4, width=8, blocks=2, classes=3):
        super().__init__()
        self.stem = nn.Conv2d(3, width, patch, patch)
        self.blocks = nn.Sequential(*(MixerBlock((size // patch) ** 2, width) for _ in range(blocks)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x):
        x = self.stem(x).flatten(2).transpose(1, 2)
        return self.head(self.norm(self.blocks(x)).mean(dim=1))

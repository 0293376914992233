"""Networks for images, written from their papers, with few channels."""

import torch
from torch import nn
from torch.nn import functional


def convolution(inputs, outputs, size=1, **options):
    """A convolution, BatchNorm and ReLU."""
    activation = options.pop("activation", nn.ReLU)
    layer = nn.Conv2d(inputs, outputs, size, padding=size // 2, bias=False, **options)
    return nn.Sequential(layer, nn.BatchNorm2d(outputs), activation())


class BasicBlock(nn.Module):
    """Two convolutions of 3 x 3 and a shortcut. https://arxiv.org/abs/1512.03385"""

    expansion = 1

    def __init__(self, inputs, width, stride):
        super().__init__()
        self.first = convolution(inputs, width, 3, stride=stride)
        self.second = nn.Sequential(nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width))
        self.shortcut = shortcut(inputs, width, stride)

    def forward(self, x):
        return functional.relu(self.second(self.first(x)) + self.shortcut(x))


class Bottleneck(nn.Module):
    """Convolutions of 1 x 1, 3 x 3 and 1 x 1, and a shortcut."""

    expansion = 4

    def __init__(self, inputs, width, stride):
        super().__init__()
        outputs = self.expansion * width
        self.first = convolution(inputs, width)
        self.second = convolution(width, width, 3, stride=stride)
        self.third = nn.Sequential(nn.Conv2d(width, outputs, 1, bias=False), nn.BatchNorm2d(outputs))
        self.shortcut = shortcut(inputs, outputs, stride)

    def forward(self, x):
        out = self.third(self.second(self.first(x)))
        out += self.shortcut(x)
        return functional.relu(out, inplace=True)


def shortcut(inputs, outputs, stride):
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))


class ResNet(nn.Module):
    def __init__(self, block, depths, width=4, classes=3):
        super().__init__()
        self.stem = convolution(3, width, 3)
        inputs = width
        stages = []
        for number, depth in enumerate(depths):
            blocks = []
            for place in range(depth):
                blocks.append(block(inputs, width * 2**number, 2 if number and not place else 1))
                inputs = width * 2**number * block.expansion
            stages.append(nn.Sequential(*blocks))
        self.stages = nn.ModuleList(stages)
        self.head = nn.Linear(inputs, classes)

    def forward(self, x):
        x = self.stem(x)
        for stage in self.stages:
            x = stage(x)
        return self.head(torch.flatten(functional.adaptive_avg_pool2d(x, 1), 1))


def ResNet18():  # noqa: N802  (the name of the model)
    return ResNet(BasicBlock, (2, 2, 2, 2))


def ResNet50():  # noqa: N802
    return ResNet(Bottleneck, (3, 4, 6, 3))


class Inverted(nn.Module):
    """Wide in the middle, one filter for each channel there. https://arxiv.org/abs/1801.04381"""

    def __init__(self, inputs, outputs, stride, factor):
        super().__init__()
        inside = factor * inputs
        widen = [] if factor == 1 else [convolution(inputs, inside, activation=nn.ReLU6)]
        self.body = nn.Sequential(
            *widen,
            convolution(inside, inside, 3, stride=stride, groups=inside, activation=nn.ReLU6),
            nn.Conv2d(inside, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.adds = stride == 1 and inputs == outputs

    def forward(self, x):
        return x + self.body(x) if self.adds else self.body(x)


class MobileNetV2(nn.Module):
    def __init__(self, classes=3):
        super().__init__()
        plan = [(1, 4, 1, 1), (6, 6, 2, 1), (6, 8, 3, 2), (6, 8, 4, 2), (6, 12, 3, 1), (6, 16, 1, 1)]
        layers, inputs = [convolution(3, 4, 3, activation=nn.ReLU6)], 4
        for factor, outputs, repeats, stride in plan:
            for place in range(repeats):
                layers.append(Inverted(inputs, outputs, 1 if place else stride, factor))
                inputs = outputs
        self.features = nn.Sequential(*layers, convolution(inputs, 24, activation=nn.ReLU6))
        self.classifier = nn.Sequential(nn.Dropout(0.0), nn.Linear(24, classes))

    def forward(self, x):
        return self.classifier(self.features(x).mean([2, 3]))


class DenseLayer(nn.Module):
    def __init__(self, inputs, growth):
        super().__init__()
        self.body = nn.Sequential(
            nn.BatchNorm2d(inputs),
            nn.ReLU(),
            nn.Conv2d(inputs, 4 * growth, 1, bias=False),
            nn.BatchNorm2d(4 * growth),
            nn.ReLU(),
            nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False),
        )

    def forward(self, earlier):
        return self.body(torch.cat(earlier, 1))


class DenseNet(nn.Module):
    """Every layer sees the outputs of all earlier layers of its block. https://arxiv.org/abs/1608.06993"""

    def __init__(self, depths=(4, 6, 4), growth=2, classes=3):
        super().__init__()
        width = 2 * growth
        self.stem = nn.Sequential(convolution(3, width, 3), nn.MaxPool2d(3, 1, 1))
        self.blocks, self.transitions = nn.ModuleList(), nn.ModuleList()
        for depth in depths:
            self.blocks.append(nn.ModuleList(DenseLayer(width + n * growth, growth) for n in range(depth)))
            inside = width + depth * growth
            width = inside // 2
            self.transitions.append(
                nn.Sequential(convolution(inside, width), nn.AvgPool2d(2, ceil_mode=True))
            )
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        x = self.stem(x)
        for block, transition in zip(self.blocks, self.transitions, strict=True):
            features = [x]
            for layer in block:
                features.append(layer(features))
            x = transition(torch.cat(features, 1))
        return self.head(x.mean((2, 3)))


class UNet(nn.Module):
    """Down, up, and shortcuts between equal sizes. https://arxiv.org/abs/1505.04597"""

    def __init__(self, width=4, depth=2, classes=3):
        super().__init__()
        widths = [width * 2**n for n in range(depth + 1)]
        self.into = self._twice(3, width)
        self.down = nn.ModuleList(self._twice(a, 2 * a) for a in widths[:-1])
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * a, a, 2, 2) for a in reversed(widths[:-1]))
        self.merge = nn.ModuleList(self._twice(2 * a, a) for a in reversed(widths[:-1]))
        self.head = nn.Conv2d(width, classes, 1)

    @staticmethod
    def _twice(inputs, outputs):
        return nn.Sequential(convolution(inputs, outputs, 3), convolution(outputs, outputs, 3))

    def forward(self, x):
        skipped = [self.into(x)]
        for down in self.down:
            skipped.append(down(functional.max_pool2d(skipped[-1], 2)))
        x = skipped.pop()
        for up, merge in zip(self.up, self.merge, strict=True):
            x = merge(torch.cat([skipped.pop(), up(x)], dim=1))
        return self.head(x)

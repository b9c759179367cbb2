"""Wide residual networks on ImageNet-sized images: Tofu §7.1, TensorOpt's Tables 1 and 4.

Tofu widens the channels of every convolution of a bottleneck ResNet, including the stem, by W. With
weights, gradients and optimizer history (three fp32 copies, in GiB) that gives its Table 2:

    W        4            6            8            10
    50       4.3 (4.2)    9.6 (9.6)    17.0 (17.1)  26.4 (26.7)
    101      7.7 (7.8)    17.2 (17.1)  30.5 (30.6)  47.6 (47.7)
    152      10.5 (10.5)  23.5 (23.4)  41.7 (41.7)  65.1 (65.1)

(in parentheses: as printed). TensorOpt's Table 1 has 7.3 GB for "WideResNet" and does not give
depth, width or image size. No integer width gives exactly that: one copy of 50 layers at width 9 is
7.2 GiB, three copies of 101 layers at width 4 are 7.7 GiB.
"""

from __future__ import annotations

from typing import Any

from shardwise.capture.model import Model
from shardwise.capture.zoo.blocks import block, with_loss
from shardwise.errors import CaptureError

_BLOCKS = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
_EXPANSION = 4


def wide_resnet(
    depth: int, /, width: int = 4, image: int = 224, classes: int = 1000, batch: int = 256
) -> Model:
    """Returns a bottleneck ResNet of 50, 101 or 152 layers, with `width` times the channels.

    Images are [batch, 3, image, image]; width 1 is the plain ResNet (25,557,032 parameters for 50
    layers). Batch 256 as in TensorOpt's Table 1.
    """
    import torch
    from torch import nn

    channels = 64 * width
    stem = nn.Sequential(
        nn.Conv2d(3, channels, 7, stride=2, padding=3, bias=False),
        nn.BatchNorm2d(channels),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
    )
    stages = nn.Sequential()
    for stage, count in enumerate(_BLOCKS[depth]):
        inner = 64 * 2**stage * width
        blocks = nn.Sequential()
        for position in range(count):
            stride = 2 if stage > 0 and position == 0 else 1
            blocks.append(_bottleneck(channels, inner, stride))
            channels = inner * _EXPANSION
        stages.append(blocks)
    body = block(
        lambda self, x: self.fc(self.pool(self.stages(self.stem(x))).flatten(1)),
        stem=stem,
        stages=stages,
        pool=nn.AdaptiveAvgPool2d(1),
        fc=nn.Linear(channels, classes),
    )
    images = torch.zeros(batch, 3, image, image)
    labels = torch.zeros(batch, dtype=torch.long)
    return Model(with_loss(body), (images, labels), input_names=("images", "labels"))


def _bottleneck(channels: int, inner: int, stride: int) -> Any:
    from torch import nn

    outer = inner * _EXPANSION

    def forward(self: Any, x: Any) -> Any:
        y = self.relu1(self.norm1(self.conv1(x)))
        y = self.relu2(self.norm2(self.conv2(y)))
        y = self.norm3(self.conv3(y))
        return self.relu3(y + (self.shortcut(x) if self.shortcut is not None else x))

    shortcut = None
    if stride != 1 or channels != outer:
        shortcut = nn.Sequential(
            nn.Conv2d(channels, outer, 1, stride=stride, bias=False), nn.BatchNorm2d(outer)
        )
    return block(
        forward,
        conv1=nn.Conv2d(channels, inner, 1, bias=False),
        norm1=nn.BatchNorm2d(inner),
        relu1=nn.ReLU(),
        # The stride is in the 3 × 3 convolution, as in today's ResNets.
        conv2=nn.Conv2d(inner, inner, 3, stride=stride, padding=1, bias=False),
        norm2=nn.BatchNorm2d(inner),
        relu2=nn.ReLU(),
        conv3=nn.Conv2d(inner, outer, 1, bias=False),
        norm3=nn.BatchNorm2d(outer),
        relu3=nn.ReLU(),
        shortcut=shortcut,
    )


def wide_resnet_cifar(
    depth: int = 28, width: int = 10, image: int = 32, classes: int = 10, batch: int = 256
) -> Model:
    """Returns WRN-`depth`-`width` of Zagoruyko & Komodakis (2016), on CIFAR-sized images.

    Three stages of (depth - 4) / 6 pre-activation blocks of two 3 × 3 convolutions, with 16, 32
    and 64 times `width` channels; WRN-28-10 has 36,479,194 parameters.
    """
    import torch
    from torch import nn

    if depth < 10 or (depth - 4) % 6:
        raise CaptureError(
            f"a WRN cannot have {depth} layers", field="depth", expected="4 + 6 · blocks"
        )
    channels = 16
    stem = nn.Conv2d(3, channels, 3, padding=1, bias=False)
    stages = nn.Sequential()
    for stage in range(3):
        blocks = nn.Sequential()
        for position in range((depth - 4) // 6):
            outer = 16 * width * 2**stage
            blocks.append(_pre_activated(channels, outer, 2 if stage > position == 0 else 1))
            channels = outer
        stages.append(blocks)
    body = block(
        lambda self, x: self.fc(
            self.pool(self.relu(self.norm(self.stages(self.stem(x))))).flatten(1)
        ),
        stem=stem,
        stages=stages,
        norm=nn.BatchNorm2d(channels),
        relu=nn.ReLU(),
        pool=nn.AdaptiveAvgPool2d(1),
        fc=nn.Linear(channels, classes),
    )
    images = torch.zeros(batch, 3, image, image)
    labels = torch.zeros(batch, dtype=torch.long)
    return Model(with_loss(body), (images, labels), input_names=("images", "labels"))


def _pre_activated(channels: int, outer: int, stride: int) -> Any:
    from torch import nn

    def forward(self: Any, x: Any) -> Any:
        y = self.relu1(self.norm1(x))
        # If the shape changes, the shortcut reads the activated input, as in the authors' code.
        kept = x if self.shortcut is None else self.shortcut(y)
        y = self.relu2(self.norm2(self.conv1(y)))
        return self.conv2(y) + kept

    shortcut = None
    if stride != 1 or channels != outer:
        shortcut = nn.Conv2d(channels, outer, 1, stride=stride, bias=False)
    return block(
        forward,
        norm1=nn.BatchNorm2d(channels),
        relu1=nn.ReLU(),
        conv1=nn.Conv2d(channels, outer, 3, stride=stride, padding=1, bias=False),
        norm2=nn.BatchNorm2d(outer),
        relu2=nn.ReLU(),
        conv2=nn.Conv2d(outer, outer, 3, padding=1, bias=False),
        shortcut=shortcut,
    )

"""The U-Net of Ronneberger, Fischer & Brox (2015), Fig. 1, for segmentation.

On the way down, four times two 3 × 3 convolutions with ReLU and a 2 × 2 pooling, the channels
doubling from 64 to 1024; on the way up, as many levels of a 2 × 2 transposed convolution that
halves the channels, concatenation with the features of the way down, and two convolutions.
31,030,658 parameters for one channel in and two classes out. Convolutions are padded, so that the
result is as large as the image: the paper's are not, and its features are cropped (572 pixels in,
388 out).
"""

from __future__ import annotations

from typing import Any

from shardwise.capture.model import Model
from shardwise.capture.zoo.blocks import block, with_loss
from shardwise.errors import CaptureError


def unet(
    depth: int = 4,
    channels: int = 64,
    inputs: int = 1,
    classes: int = 2,
    image: int = 512,
    batch: int = 16,
) -> Model:
    """Returns a U-Net of `depth` levels; images [batch, inputs, image, image], labels by pixel."""
    import torch
    from torch import nn

    if image % 2**depth:
        raise CaptureError(
            f"an image of {image} pixels cannot be halved {depth} times",
            field="image",
            expected=f"a multiple of {2**depth}",
        )
    widths = [channels * 2**level for level in range(depth + 1)]

    def forward(self: Any, x: Any) -> Any:
        across = []
        for level in self.down:
            x = level(x)
            across.append(x)
            x = self.pool(x)
        x = self.bottom(x)
        for up, level in zip(self.up, self.merge, strict=True):
            x = level(torch.cat((across.pop(), up(x)), dim=1))
        return self.head(x)

    downwards = zip([inputs, *widths], widths[:-1], strict=False)
    body = block(
        forward,
        down=nn.ModuleList(_twice(a, b) for a, b in downwards),
        pool=nn.MaxPool2d(2),
        bottom=_twice(widths[-2], widths[-1]),
        up=nn.ModuleList(nn.ConvTranspose2d(2 * w, w, 2, stride=2) for w in widths[-2::-1]),
        merge=nn.ModuleList(_twice(2 * w, w) for w in widths[-2::-1]),
        head=nn.Conv2d(channels, classes, 1),
    )
    images = torch.zeros(batch, inputs, image, image)
    labels = torch.zeros(batch, image, image, dtype=torch.long)
    return Model(with_loss(body), (images, labels), input_names=("images", "labels"))


def _twice(inputs: int, outputs: int) -> Any:
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(outputs, outputs, 3, padding=1),
        nn.ReLU(),
    )

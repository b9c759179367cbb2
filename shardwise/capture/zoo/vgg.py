"""VGG16 (Simonyan & Zisserman, configuration D): TensorOpt's Tables 1 and 4."""

from __future__ import annotations

from shardwise.capture.model import Model
from shardwise.capture.zoo.blocks import block, with_loss

_STAGES = ((1, 2), (2, 2), (4, 3), (8, 3), (8, 3))


def vgg16(
    image: int = 224,
    classes: int = 1000,
    channels: int = 64,
    hidden: int = 4096,
    dropout: float = 0.5,
    batch: int = 256,
) -> Model:
    """Returns VGG16: 13 convolutions and three fully connected layers.

    It has 138,357,544 parameters (0.52 GiB fp32). Images are [batch, 3, image, image]; batch 256
    as in TensorOpt's Table 1. `channels` are those of the first convolution, `hidden` the width of
    the classifier.
    """
    import torch
    from torch import nn

    features: list[object] = []
    incoming = 3
    for times, count in _STAGES:
        for _ in range(count):
            features += [nn.Conv2d(incoming, times * channels, 3, padding=1), nn.ReLU()]
            incoming = times * channels
        features.append(nn.MaxPool2d(2, 2))
    side = image // 2 ** len(_STAGES)
    classifier = nn.Sequential(
        nn.Linear(incoming * side * side, hidden),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(hidden, hidden),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(hidden, classes),
    )
    body = block(
        lambda self, x: self.classifier(self.features(x).flatten(1)),
        features=nn.Sequential(*features),
        classifier=classifier,
    )
    images = torch.zeros(batch, 3, image, image)
    labels = torch.zeros(batch, dtype=torch.long)
    return Model(with_loss(body), (images, labels), input_names=("images", "labels"))

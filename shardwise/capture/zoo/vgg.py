"""VGG16 (Simonyan & Zisserman, configuration D): TensorOpt's Tables 1 and 4."""

from __future__ import annotations

from shardwise.capture.model import Model
from shardwise.capture.zoo.blocks import block, with_loss

_STAGES = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))


def vgg16(image: int = 224, classes: int = 1000, dropout: float = 0.5, batch: int = 256) -> Model:
    """13 convolutions and three fully connected layers, 138,357,544 parameters (0.52 GiB fp32).

    Images are [batch, 3, image, image]; batch 256 as in TensorOpt's Table 1.
    """
    import torch
    from torch import nn

    features: list[object] = []
    channels = 3
    for width, count in _STAGES:
        for _ in range(count):
            features += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()]
            channels = width
        features.append(nn.MaxPool2d(2, 2))
    side = image // 2 ** len(_STAGES)
    classifier = nn.Sequential(
        nn.Linear(channels * side * side, 4096),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(4096, 4096),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(4096, classes),
    )
    body = block(
        lambda self, x: self.classifier(self.features(x).flatten(1)),
        features=nn.Sequential(*features),
        classifier=classifier,
    )
    images = torch.zeros(batch, 3, image, image)
    labels = torch.zeros(batch, dtype=torch.long)
    return Model(with_loss(body), (images, labels), input_names=("images", "labels"))

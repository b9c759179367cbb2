"""HeteroG's models (its Tables 1 and 4) as graphs in float32, from configurations alone.

The paper names the model, its layers and its batch. The rest is taken from the authors' code
(github.com/eval-submissions/HeteroG, GAT/prepare_graphdef_input.py, June 2020); the code of their
later TAG (github.com/ylxdzsw/tag, search/gen_raw_data.py) has the same values for the models it
shares:

- Every model is trained by Adam.
- Images are 224 × 224, also for Inception-v3 and NASNet, in 1000 classes. Dropout is that of
  TensorFlow-Slim. The loss is the sigmoid cross entropy there and the softmax's here.
- The Transformer has hidden size 512, feed-forward size 2048, 8 heads, as many decoder layers as
  encoder layers, sentences of 10 words, and one table of 50,000 words each for source, target and
  output (WMT14, English to German). Its attention has a ReLU after q, k and v and no projection at
  the end, and masks padding; here it is that of Vaswani et al., without padding.
- BERT-large is trained on SQuAD's answers with sequences of 128 tokens (`heterog_squad.py`). Google
  measured that 6 of them are the most that fit a card of 12 GB (BERT's README, TensorFlow 1.11),
  and a batch of 48 on 8 GPUs is 6 on each. 48 layers are twice BERT-large.

Assumed, because the code lacks it or it cannot be what was measured:

- XLNet-large is trained as BERT-large is.
- The code's NASNet is Slim's for CIFAR, which does not stride first: on 224 × 224 images, 24 of
  them take tens of GB. Here it is NASNet-A-large. Under data parallelism 24 images of its usual
  331 × 331 take 23.6 GB on our cost model, on cards of 11 GB in the paper; of 224 × 224, 11.1 GB.
- ResNet-200 and MobileNet-v2 are timm's. Slim's ResNet v2 normalises before its convolutions.
- Table 1 has a Transformer of 24 layers where Table 3 has 48; both are here.

Where `Row.fits` is false, the paper's data parallelism runs out of memory. On our cost model, whose
operators keep what PyTorch's keep, it does for ResNet-200 and for 48 layers of BERT and XLNet. For
the other rows sequences as long as the code's fit, and those of `LONGER` do not. NASNet is just
above what the default headroom leaves of a card of 11 GiB (10.7 GB).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from paper import models
from shardwise.graph import Graph, read_graph, write_graph

OPTIMIZER = "adam"

_TRANSFORMER = "zoo:transformer:hidden=512,heads=8,vocab=50000,tables=3,layers={}"
_SQUAD = "paper.heterog_squad:{}"

SOURCES: Mapping[str, tuple[str, int | None]] = {
    "vgg-19": ("timm:vgg19:drop_rate=0.5", None),
    "resnet-200": ("timm:resnet200", None),
    "inception-v3": ("timm:inception_v3:img_size=224,drop_rate=0.2", None),
    "mobilenet-v2": ("timm:mobilenetv2_100:drop_rate=0.2", None),
    "nasnet": ("timm:nasnetalarge:img_size=224,drop_rate=0.5", None),
    "transformer-6": (_TRANSFORMER.format(6), 10),
    "transformer-24": (_TRANSFORMER.format(24), 10),
    "transformer-48": (_TRANSFORMER.format(48), 10),
    "bert-large": (_SQUAD.format("bert_24"), 128),
    "bert-large-48": (_SQUAD.format("bert_48"), 128),
    "xlnet-large": (_SQUAD.format("xlnet_24"), 128),
    "xlnet-large-48": (_SQUAD.format("xlnet_48"), 128),
}
"""What `capture` is given, and the tokens of a sequence."""

LONGER: Mapping[str, int] = {
    "transformer-6": 88,
    "transformer-48": 88,
    "bert-large": 256,
    "xlnet-large": 256,
}
"""Tokens with which data parallelism fits 11 GB exactly where the paper says so, on our cost model.

The Transformer of 24 layers has no such length: with 88 tokens it takes 6.5 GB. 48 layers exceed
10.7 GB from 84 tokens on, and 6 layers from 94.
"""


@dataclass(frozen=True)
class Row:
    """A row of Tables 1 and 4: the batch on 8 and on 12 GPUs, and whether data parallelism fits."""

    model: str
    batch_8: int
    batch_12: int
    fits: bool = True


ROWS = (
    Row("vgg-19", 192, 288),
    Row("resnet-200", 192, 288),
    Row("inception-v3", 192, 288),
    Row("mobilenet-v2", 192, 288),
    Row("nasnet", 192, 288),
    Row("transformer-6", 720, 1080),
    Row("bert-large", 48, 72),
    Row("xlnet-large", 48, 72),
    Row("resnet-200", 384, 576, fits=False),
    Row("transformer-24", 120, 180, fits=False),
    Row("transformer-48", 120, 180, fits=False),
    Row("bert-large", 96, 144, fits=False),
    Row("xlnet-large", 96, 144, fits=False),
    Row("bert-large-48", 24, 36, fits=False),
    Row("xlnet-large-48", 24, 36, fits=False),
)


@cache
def heterog_graph(name: str, batch: int, *, seq: int | None = None) -> Graph:
    """The training graph of a name in `SOURCES` on a batch of the whole job.

    `seq` replaces the model's tokens. Captured once, then read from `models.FOLDER`.
    """
    path = heterog_path(name, batch, seq=seq)
    if not path.exists():
        from shardwise.capture import capture

        models.FOLDER.mkdir(parents=True, exist_ok=True)
        source, asked = _asked(name, batch, seq)
        write_graph(capture(source, name=f"{name}-{batch}", dtype="float32", **asked), path)
    return read_graph(path)


def heterog_path(name: str, batch: int, *, seq: int | None = None) -> Path:
    """Where `heterog_graph` keeps what it has captured."""
    # What is captured is part of the name: a changed source does not find the old graph.
    version = hashlib.sha256(repr(_asked(name, batch, seq)).encode()).hexdigest()[:8]
    return models.FOLDER / f"heterog-{name}-{batch}-{version}.json.gz"


def _asked(name: str, batch: int, seq: int | None) -> tuple[str, dict[str, int | None]]:
    """What `capture` is given."""
    source, tokens = SOURCES[name]
    return source, {"batch": batch, "seq": tokens if seq is None else seq}

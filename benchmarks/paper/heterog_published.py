"""What HeteroG's paper prints (Yi et al., CoNEXT 2020, Tables 1 to 7)."""

from __future__ import annotations

from collections.abc import Mapping

METHODS = ("ev-ps", "ev-ar", "cp-ps", "cp-ar")

Times = tuple[float, float, float, float, float]
"""Seconds of HeteroG, EV-PS, EV-AR, CP-PS, CP-AR."""

TIMES: Mapping[int, Mapping[str, Times]] = {
    8: {  # Table 1
        "vgg-19": (0.462, 0.907, 0.653, 0.853, 0.591),
        "resnet-200": (0.693, 1.431, 0.955, 1.273, 0.897),
        "inception-v3": (0.528, 0.933, 0.701, 0.911, 0.659),
        "mobilenet-v2": (0.232, 0.413, 0.368, 0.394, 0.325),
        "nasnet": (0.862, 1.244, 1.028, 1.203, 1.116),
        "transformer-6": (0.298, 0.961, 0.496, 0.931, 0.361),
        "bert-large": (0.451, 0.612, 1.064, 0.795, 1.049),
        "xlnet-large": (0.851, 1.232, 1.551, 1.283, 1.566),
    },
    12: {  # Table 4
        "vgg-19": (0.503, 0.911, 0.682, 0.896, 0.633),
        "resnet-200": (0.745, 1.522, 1.085, 1.298, 0.966),
        "inception-v3": (0.641, 0.987, 0.806, 0.954, 0.791),
        "mobilenet-v2": (0.255, 0.421, 0.411, 0.403, 0.337),
        "nasnet": (0.915, 1.385, 1.123, 1.275, 1.348),
        "transformer-6": (0.419, 1.133, 0.605, 1.112, 0.547),
        "bert-large": (0.538, 0.825, 1.234, 0.821, 1.218),
        "xlnet-large": (0.972, 1.447, 1.681, 1.485, 1.832),
    },
}

LARGE: Mapping[int, Mapping[str, float]] = {
    # Seconds of HeteroG where all four baselines run out of memory. Table 1 calls the Transformer's
    # layers 24 and Table 3 calls them 48.
    8: {
        "resnet-200": 2.285,
        "transformer-24": 1.147,
        "bert-large": 2.241,
        "xlnet-large": 4.254,
        "bert-large-48": 1.892,
        "xlnet-large-48": 3.468,
    },
    12: {
        "resnet-200": 3.031,
        "transformer-24": 1.544,
        "bert-large": 2.611,
        "xlnet-large": 5.043,
        "bert-large-48": 2.367,
        "xlnet-large-48": 3.812,
    },
}

CHOICES: Mapping[str, Times] = {
    # Table 2: operators alone on one V100, EV-PS, EV-AR, CP-PS, CP-AR, percent.
    "vgg-19": (2.1, 11.7, 28.5, 7.6, 50.1),
    "resnet-200": (4.2, 25.7, 29.2, 8.1, 32.8),
    "inception-v3": (1.8, 18.4, 21.5, 21.7, 36.6),
    "mobilenet-v2": (3.7, 31.7, 41.2, 9.5, 13.9),
    "nasnet": (3.6, 8.8, 66.5, 10.4, 10.7),
    "transformer-6": (3.8, 12.2, 21.1, 18.2, 44.7),
    "bert-large": (5.3, 41.4, 23.9, 11.1, 18.3),
    "xlnet-large": (12.2, 33.5, 28.1, 11.6, 14.6),
}

LARGE_CHOICES: Mapping[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    # Table 3: operators alone on G0 to G7 (V100, V100, four GTX 1080 Ti, two P100), then EV-PS,
    # EV-AR, CP-PS, CP-AR, percent.
    "resnet-200": ((28.7, 21.5, 14.7, 12.8, 6.5, 7.8, 0, 0), (2.8, 5.2, 0, 0)),
    "transformer-48": ((33.6, 29.8, 7.2, 6.1, 4.4, 5.6, 2.1, 3.5), (1.7, 1.4, 2.2, 2.4)),
    "bert-large": ((20.6, 17.7, 11.5, 10.8, 12.3, 8.2, 5.4, 3.6), (3.3, 2.8, 1.2, 2.6)),
    "xlnet-large": ((22.3, 19.4, 9.8, 8.4, 10.3, 8.1, 5.2, 5.8), (2.3, 3.5, 3.3, 1.6)),
    "bert-large-48": ((22.8, 21.6, 8.4, 7.2, 8.7, 7.9, 6.4, 4.3), (2.8, 3.5, 2.7, 3.7)),
    "xlnet-large-48": ((28.6, 24.7, 5.4, 7.5, 6.3, 5.9, 3.3, 3.7), (2.9, 4.1, 2.7, 4.9)),
}

END_TO_END: Mapping[int, Mapping[str, tuple[float, float, float]]] = {
    # Table 5: minutes of HeteroG, CP-PS, CP-AR.
    8: {
        "vgg-19": (513.1, 930.2, 660.9),
        "resnet-200": (633.1, 1137.1, 807.8),
        "inception-v3": (834.6, 1463.9, 1047.5),
        "mobilenet-v2": (221.4, 369.5, 319.5),
        "nasnet": (1191.3, 1683.3, 1537.9),
    },
    12: {
        "vgg-19": (369.8, 667.1, 457.1),
        "resnet-200": (423.8, 726.7, 533.1),
        "inception-v3": (643.6, 980.8, 783.9),
        "mobilenet-v2": (169.8, 264.5, 229.7),
        "nasnet": (863.9, 1179.2, 1134.3),
    },
}

MINUTES: Mapping[str, tuple[tuple[float, float], tuple[float, float]]] = {
    # Table 6: minutes from scratch and fine-tuned, on 8 and on 12 GPUs.
    "vgg-19": ((82.5, 21.2), (113.4, 25.3)),
    "resnet-200": ((174.7, 27.3), (201.3, 30.7)),
    "inception-v3": ((112.6, 25.1), (141.5, 29.4)),
    "mobilenet-v2": ((105.2, 26.5), (144.6, 29.8)),
    "nasnet": ((154.9, 33.4), (191.4, 40.7)),
    "transformer-6": ((143.2, 36.9), (178.8, 41.4)),
    "bert-large": ((196.1, 45.1), (243.9, 48.7)),
    "xlnet-large": ((211.7, 41.4), (245.3, 46.5)),
}

FIFO: Mapping[str, float] = {
    # Table 7: seconds with TensorFlow's own order, on 8 GPUs.
    "vgg-19": 0.512,
    "resnet-200": 0.761,
    "inception-v3": 0.602,
    "mobilenet-v2": 0.269,
    "nasnet": 0.989,
    "transformer-6": 0.322,
    "bert-large": 0.514,
    "xlnet-large": 1.005,
}

CNNS = ("vgg-19", "resnet-200", "inception-v3", "mobilenet-v2", "nasnet")
SPARSE = ("bert-large", "xlnet-large")
"""The models whose baselines are faster with a parameter server, as printed."""

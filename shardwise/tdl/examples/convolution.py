"""Calls of the operators in `descriptions.convolution`."""

from shardwise.tdl.examples.cases import case, give, one

give(
    case("conv1d.default", {"input": (4, 6, 36), "weight": (8, 6, 5)}),
    case("conv1d.default", {"input": (4, 6, 32), "weight": (8, 6, 3), "bias": (8,)}, padding=[1]),
    case("conv1d.default", {"input": (2, 4, 16), "weight": (4, 2, 3)}, padding=[1], groups=2),
    case("conv1d.default", {"input": (2, 16, 8), "weight": (16, 4, 1)}, groups=4),
    case("conv1d.default", {"input": (2, 8, 8), "weight": (8, 1, 3)}, padding=[1], groups=8),
    case("conv1d.default", {"input": (2, 8, 8), "weight": (16, 1, 3)}, padding=[1], groups=8),
    case("conv2d.default", {"input": (4, 6, 8, 12), "weight": (8, 6, 3, 3)}, padding=[1, 1]),
    case(
        "conv2d.default",
        {"input": (2, 4, 16, 16), "weight": (8, 4, 3, 3)},
        padding=[1, 1],
        stride=[2, 2],
    ),
    case(
        "conv2d.default",
        {"input": (2, 4, 24, 14), "weight": (8, 4, 3, 3)},
        padding=[2, 2],
        dilation=[2, 2],
    ),
    case("conv2d.default", {"input": (2, 4, 7, 7), "weight": (8, 4, 3, 3)}, padding=[1, 1]),
    case("conv2d.default", {"input": (2, 4, 17, 17), "weight": (8, 4, 3, 3)}, stride=[2, 2]),
    case(
        "conv3d.default", {"input": (2, 4, 8, 4, 4), "weight": (6, 4, 3, 1, 1)}, padding=[1, 0, 0]
    ),
    case("conv1d.padding", {"input": (2, 4, 16), "weight": (6, 4, 4)}, padding="same"),
    case("conv2d.padding", {"input": (2, 4, 10, 10), "weight": (6, 4, 3, 3)}, padding="valid"),
    case("conv2d.default", {"input": (2, 4, 6, 6), "weight": (4, 1, 3, 3)}, groups=4),
    case("conv3d.padding", {"input": (2, 4, 8, 4, 4), "weight": (6, 4, 3, 1, 1)}, padding="same"),
    one("max_pool1d.default", 4, 6, 16, kernel_size=[2]),
    one("max_pool2d.default", 4, 6, 8, 8, kernel_size=[2, 2]),
    one("max_pool2d.default", 2, 4, 16, 16, kernel_size=[3, 3], stride=[2, 2], padding=[1, 1]),
    one("max_pool3d.default", 2, 4, 8, 8, 8, kernel_size=[2, 2, 2]),
    one("avg_pool1d.default", 4, 6, 16, kernel_size=[4]),
    one("avg_pool2d.default", 4, 6, 8, 8, kernel_size=[3, 3], stride=[1, 1], padding=[1, 1]),
    one("avg_pool3d.default", 2, 4, 4, 4, 4, kernel_size=[2, 2, 2]),
    one("adaptive_avg_pool1d.default", 4, 6, 12, output_size=[4]),
    one("adaptive_avg_pool2d.default", 4, 6, 8, 8, output_size=[1, 1]),
    one("adaptive_avg_pool2d.default", 4, 6, 8, 12, output_size=[4, 4]),
)

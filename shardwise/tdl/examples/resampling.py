"""Calls of the operators in `descriptions.resampling`."""

from typing import Any

from shardwise.tdl.examples.cases import Given, case, give, one


def _vec(name: str, *shape: int, **attributes: Any) -> Given:
    return case(f"{name}.vec", {"input": shape}, **attributes)


def _both(name: str, *shape: int, to: list[int], **attributes: Any) -> tuple[Given, Given]:
    vector = _vec(name, *shape, output_size=to, scale_factors=None, **attributes)
    return one(f"{name}.default", *shape, output_size=to, **attributes), vector


give(
    *_both("upsample_nearest1d", 4, 6, 8, to=[16]),
    *_both("upsample_nearest2d", 4, 6, 8, 8, to=[16, 24]),
    _vec("upsample_nearest2d", 4, 6, 8, 8, output_size=None, scale_factors=[2.0, 2.0]),
    _vec("upsample_nearest2d", 4, 6, 8, 8, output_size=None, scale_factors=[1.3, 2.0]),
    one("upsample_nearest2d.default", 4, 6, 8, 8, output_size=[4, 12]),
    *_both("upsample_nearest3d", 2, 4, 4, 4, 4, to=[8, 8, 4]),
    *_both("_upsample_nearest_exact1d", 4, 6, 8, to=[16]),
    *_both("_upsample_nearest_exact2d", 4, 6, 8, 8, to=[16, 4]),
    *_both("_upsample_nearest_exact3d", 2, 4, 4, 4, 4, to=[8, 8, 4]),
    *_both("upsample_linear1d", 4, 6, 8, to=[16], align_corners=False),
    *_both("upsample_bilinear2d", 4, 6, 8, 8, to=[16, 12], align_corners=False),
    *_both("upsample_bilinear2d", 4, 6, 8, 8, to=[16, 4], align_corners=True),
    *_both("upsample_trilinear3d", 2, 2, 8, 4, 4, to=[16, 4, 4], align_corners=False),
    *_both("upsample_bicubic2d", 4, 6, 12, 12, to=[24, 12], align_corners=False),
    *_both("_upsample_bilinear2d_aa", 4, 6, 8, 8, to=[4, 4], align_corners=False),
    *_both("_upsample_bicubic2d_aa", 4, 6, 8, 8, to=[4, 4], align_corners=False),
    *(
        case(
            f"{name}.default",
            {"input": (4, 6, 8, 8), "grid": (4, 2, 6, 2)},
            interpolation_mode=0,
            padding_mode=0,
            align_corners=False,
        )
        for name in ("grid_sampler", "grid_sampler_2d")
    ),
    case(
        "grid_sampler_3d.default",
        {"input": (2, 4, 4, 4, 4), "grid": (2, 2, 6, 2, 3)},
        interpolation_mode=0,
        padding_mode=0,
        align_corners=False,
    ),
    case(
        "affine_grid_generator.default",
        {"theta": (4, 2, 3)},
        size=[4, 3, 6, 8],
        align_corners=False,
    ),
)

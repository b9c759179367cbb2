"""Calls of the operators in `descriptions.complexes`."""

from typing import Any

from shardwise.tdl.examples.cases import Given, case, give, one

_UNARY = "real imag conj _conj conj_physical _conj_physical resolve_conj resolve_neg angle"


def _complex(kind: str, *shape: int, **attributes: Any) -> Given:
    return case(kind, {"self": shape}, complexes=["self"], **attributes)


give(
    *(_complex(f"{name}.default", 4, 6) for name in _UNARY.split()),
    one("_neg_view.default", 4, 6),
    one("view_as_complex.default", 4, 6, 2),
    one("view_as_complex_copy.default", 4, 6, 2),
    _complex("view_as_real.default", 4, 6),
    _complex("view_as_real_copy.default", 4, 6),
    case("mul.Tensor", {"self": (4, 6), "other": (6,)}, complexes=["self", "other"]),
    case("complex.default", {"real": (4, 6), "imag": (6,)}),
    case("polar.default", {"abs": (4, 6), "angle": (6,)}),
    one("_fft_r2c.default", 4, 6, 8, dim=[2], normalization=0, onesided=True),
    _complex("_fft_c2r.default", 4, 6, 5, dim=[2], normalization=2, last_dim_size=8),
    _complex("_fft_c2c.default", 4, 6, 8, dim=[0, 2], normalization=0, forward=True),
    *(_complex(f"fft_{n}.default", 4, 6, dim=0) for n in ("fft", "ifft", "irfft", "hfft")),
    *(one(f"fft_{n}.default", 4, 8) for n in ("rfft", "ihfft")),
    *(_complex(f"fft_{n}.default", 4, 6, 8, dim=[1, 2]) for n in ("fftn", "ifftn", "irfftn")),
    one("fft_rfftn.default", 4, 6, 8, s=[6, 4]),
    *(_complex(f"fft_{n}.default", 4, 6, 8) for n in ("fft2", "ifft2", "irfft2")),
    one("fft_rfft2.default", 4, 6, 8),
    one("fft_fftshift.default", 4, 6, dim=[1]),
    one("fft_ifftshift.default", 4, 6),
    one("stft.default", 4, 32, n_fft=8, hop_length=4, return_complex=True),
    case(
        "stft.center",
        {"self": (4, 32), "window": (8,)},
        n_fft=8,
        hop_length=4,
        center=True,
        return_complex=True,
    ),
)

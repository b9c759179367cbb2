"""Offers from a request: the shipped table, or text with the SkyPilot catalog's columns."""

from __future__ import annotations

from shardwise.errors import BadInput
from shardwise.hardware import Offer, list_builtin, parse_offers, read_offers
from shardwise.hardware.accelerators import OF_GPU

MAX_OFFERS = 10_000
FIELD = "offers_csv"


def offers_from_csv(text: str | None) -> list[Offer]:
    """Returns the offers of a CSV text, or the shipped ones. `BadInput` names row and column.

    Only built-in profiles may be named: on a command line the Hardware column may be a file, here
    it would read the server's.
    """
    if text is None:
        return read_offers()
    if text.count("\n") > MAX_OFFERS:
        raise BadInput("too many rows", field=FIELD, expected=f"at most {MAX_OFFERS}")
    try:
        offers = parse_offers(text, FIELD)
    except BadInput as error:
        where = f"{FIELD}: {error.field}" if error.field else FIELD
        raise BadInput(error.problem, field=where, expected=error.expected) from None
    if not offers:
        raise BadInput("no offers", field=FIELD, expected="rows with GPUs and prices")
    for offer in offers:
        _require_profile(offer)
    return offers


def _require_profile(offer: Offer) -> None:
    """Raises `BadInput` unless the offer's profile, if it names one, is known here."""
    spec = offer.hardware
    if spec is None or spec in list_builtin():
        return
    if not spec.startswith(OF_GPU):
        known = ", ".join(list_builtin())
        raise BadInput(
            f"unknown hardware {spec[:100]!r}",
            field=f"{FIELD}: Hardware",
            expected=f"{OF_GPU}NAME, or one of {known}",
        )
    try:
        offer.profile()
    except BadInput as error:
        raise BadInput(error.problem, field=f"{FIELD}: Hardware", expected=error.expected) from None

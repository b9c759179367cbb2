"""Offers from a request: the shipped table, or text with the SkyPilot catalog's columns."""

from __future__ import annotations

from shardwise.errors import BadInput
from shardwise.hardware import Offer, list_builtin, parse_offers, read_offers

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
    builtin = list_builtin()
    for offer in offers:
        if offer.hardware is not None and offer.hardware not in builtin:
            raise BadInput(
                f"unknown hardware {offer.hardware!r}",
                field=f"{FIELD}: Hardware",
                expected=", ".join(builtin),
            )
    return offers

"""An answer as its page shows it, without a service that has computed it."""

from __future__ import annotations

from typing import Any

import msgspec

from service.page.render import environment
from service.page.views.answers import CONTEXTS


def rendered(kind: str, answer: msgspec.Struct | dict[str, Any]) -> str:
    """Returns the HTML of a document of this kind."""
    template, prepare = CONTEXTS[kind]
    result = msgspec.to_builtins(answer)
    values = {
        **prepare(result),
        "result": result,
        "job": {"id": f"{kind}_0", "question": {}},
        "about": "a question",
        "choices": [],
        "again": "/",
        "nonce": "nonce",
        "path": f"/jobs/{kind}_0",
        "administers": [],
        "signed_in": False,
        "person": None,
    }
    return environment().get_template(template).render(**values)

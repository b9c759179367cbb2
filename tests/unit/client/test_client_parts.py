"""What the client sends of options and offers; what it refuses; what it needs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from shardwise.answers import Options
from shardwise.client import Client
from shardwise.client.questions import offers_csv, options_document, options_query
from shardwise.errors import BadInput
from shardwise.hardware import parse_offers, read_offers

ROOT = Path(__file__).parents[3]
SERVER = "http://service.example"


def test_options_are_sent_by_name() -> None:
    from shardwise.cost.pins import parse_pin
    from shardwise.cost.step_settings import StepSettings

    assert options_document(Options()) == {}, "no recompute and no micro-batches: the service's own"
    assert options_query(Options()) == []
    options = Options(
        zero=(0, 1),
        pins=(parse_pin("zero=3"), parse_pin("a:split!=batch")),
        step=StepSettings(update="fused"),
        overlap=False,
        recompute="auto",
        micro_batches=(1, 2),
    )
    document = options_document(options)
    assert document["pins"] == ["*:zero=3", "a:split!=batch"]
    assert document["step"]["update"] == "fused"
    assert (document["overlap"], document["recompute"]) == (False, "auto")
    assert (document["zero"], document["micro_batches"]) == ([0, 1], [1, 2])
    query = options_query(options)
    assert {("zero", "0,1"), ("overlap", "false"), ("micro_batches", "1,2")} <= set(query)
    assert ("recompute", "auto") in query
    assert [value for name, value in query if name == "pins"] == document["pins"]
    with pytest.raises(BadInput, match="threads"):
        options_document(Options(threads=2))


def test_offers_read_back_as_they_were() -> None:
    offers = read_offers()
    assert parse_offers(offers_csv(offers) or "", "offers_csv") == offers


@pytest.mark.parametrize(
    ("server", "key"),
    [("service.example", None), ("ftp://x", None), ("http://", None), ("http://u:p@x", None),
     ("http://x:port", None), ("http://x?y=1", None), (SERVER, ""), (SERVER, "a b"),
     (SERVER, "a\nb"), (SERVER, "é")],
)  # fmt: skip
def test_bad_servers_and_keys_are_refused(server: str, key: str | None) -> None:
    with pytest.raises(BadInput) as caught:
        Client(server, key=key)
    assert caught.value.field in ("server", "key")


def test_the_library_needs_no_httpx_until_a_client_is_made() -> None:
    code = (
        "import sys; sys.modules['httpx'] = None\n"
        "import shardwise, shardwise.client, shardwise.cli.main, shardwise.answers\n"
        "from shardwise.errors import BadInput\n"
        "try:\n"
        "    shardwise.Client('http://x')\n"
        "except BadInput as error:\n"
        "    assert 'shardwise[client]' in str(error), error\n"
        "else:\n"
        "    raise SystemExit('made without httpx')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)

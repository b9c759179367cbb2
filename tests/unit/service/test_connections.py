"""Places of connections: in all and for each address, idle ones give way; open files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from service.host.connections import Connections, Slot

ROOT = Path(__file__).parents[3]


class Guests:
    """Connections by number; `ended` are those that had to give way, in their order."""

    def __init__(self, most: int, most_each: int, uncounted: str = "") -> None:
        self.places = Connections(most, most_each, uncounted)
        self.ended: list[int] = []
        self._number = 0

    def come(self, address: str = "192.0.2.1") -> Slot | None:
        number = self._number
        self._number += 1
        return self.places.admit(address, lambda: self.ended.append(number))

    def work(self, address: str = "192.0.2.1") -> Slot:
        slot = self.come(address)
        assert slot is not None
        self.places.works(slot)
        return slot


def test_the_longest_idle_gives_way() -> None:
    guests = Guests(3, 3)
    first = guests.work()
    for _ in range(2):
        assert guests.come()
    guests.places.waits(first)
    assert guests.come() and guests.ended == [1]
    assert guests.come() and guests.ended == [1, 2]
    assert guests.come() and guests.ended == [1, 2, 0]
    assert len(guests.places) == 3


def test_one_that_is_answered_never_gives_way() -> None:
    guests = Guests(2, 2)
    busy = [guests.work(), guests.work()]
    assert guests.come() is None and guests.ended == []
    guests.places.leave(busy[0])
    guests.places.leave(busy[0])
    assert guests.come() is not None and len(guests.places) == 2


def test_an_address_takes_its_own_places_alone() -> None:
    guests = Guests(10, 2)
    other = guests.come("192.0.2.2")
    for _ in range(5):
        assert guests.come("192.0.2.1")
    assert guests.ended == [1, 2, 3] and len(guests.places) == 3
    assert other is not None
    for _ in range(2):
        guests.work("2001:db8::1")
    assert guests.come("2001:db8::ffff") is None, "one network of a subscriber"
    assert guests.come("2001:db8:0:1::1")
    assert guests.come("::ffff:192.0.2.2") and guests.come("192.0.2.2")
    assert guests.ended == [1, 2, 3, 0], "an IPv4 address in IPv6's form is the same"


def test_proxies_are_counted_in_all_alone() -> None:
    guests = Guests(5, 1, "10.0.0.0/8, 192.0.2.9")
    assert [bool(guests.work(address)) for address in ["10.1.1.1", "10.1.1.1", "192.0.2.9"]]
    assert guests.work("192.0.2.1") and guests.come("192.0.2.1") is None
    assert guests.work("10.1.1.1") and guests.come("10.1.1.1") is None


@pytest.mark.parametrize(("soft", "hard", "fit"), [(300, 5000, 4000), (300, 1000, 744)])
def test_open_files_are_raised_as_far_as_may_be(soft: int, hard: int, fit: int) -> None:
    program = (
        "import resource; from service.host.open_files import raise_open_files\n"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))\n"
        "print(raise_open_files(4000), resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.split() == [str(fit), str(fit + 256)], done.stderr

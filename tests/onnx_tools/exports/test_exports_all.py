# SPDX-License-Identifier: Apache-2.0
"""Every exported file in both interfaces: the same as the original on each sequence alone, or refused."""

from __future__ import annotations

import pytest

from tests.support import exports
from tests.support.exports_table import INTERFACES, expected_table, outcome
from tests.support.rewritings import Rewritings


def test_the_table_has_every_file() -> None:
    assert list(expected_table()) == exports.names()


@pytest.mark.parametrize("interface", INTERFACES)
@pytest.mark.parametrize("name", exports.names())
def test_outcomes_are_those_of_the_table(name: str, interface: str, rewritings: Rewritings) -> None:
    """The table was written by `python -m tests.support.exports_table`."""
    assert outcome(name, interface, rewritings.of_export) == expected_table()[name][interface]

# SPDX-License-Identifier: Apache-2.0
"""Values that are made when somebody first asks for them, and then shared."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TypeVar

KeyT = TypeVar("KeyT", bound=Hashable)
ValueT = TypeVar("ValueT")


def once(values: dict[KeyT, ValueT], key: KeyT, make: Callable[[], ValueT]) -> ValueT:
    """The value of a key, which `make` makes where there is none yet."""
    if key not in values:
        values[key] = make()
    return values[key]

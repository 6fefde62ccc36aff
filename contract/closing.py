# SPDX-License-Identifier: Apache-2.0
"""Objects that a `with` block closes at its end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import TypeVar

ClosingT = TypeVar("ClosingT", bound="Closing")


class Closing(ABC):
    """Has a `close`, which the end of a `with` block calls."""

    @abstractmethod
    def close(self) -> None:
        """Frees what it holds; harmless when called again."""

    def __enter__(self: ClosingT) -> ClosingT:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

# SPDX-License-Identifier: Apache-2.0
"""Answers reach a caller in the order in which the caller asked, whatever the order of runs."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field


@dataclass(eq=False)
class Ticket:
    """A request's position in its caller's line; `deliver` is what hands out its answer, once there is one."""

    caller: Hashable
    deliver: Callable[[], object] | None = None


@dataclass(eq=False)
class _CallerLine:
    tickets: deque[Ticket] = field(default_factory=deque)
    delivering: bool = False


class CallerOrder:
    """One line for each caller; None is no caller, and its answers wait for nobody."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lines: dict[Hashable, _CallerLine] = {}
        self._nobody_s = Ticket(None)

    def join(self, caller: Hashable) -> Ticket:
        """A ticket at the end of the caller's line."""
        if caller is None:
            return self._nobody_s
        ticket = Ticket(caller)
        with self._lock:
            self._lines.setdefault(caller, _CallerLine()).tickets.append(ticket)
        return ticket

    def finish(self, ticket: Ticket, deliver: Callable[[], object]) -> None:
        """Calls `deliver` when all tickets before this one are finished, here or in the thread that finishes the last.

        Called once for every ticket. No lock is held during `deliver`, and deliveries of a line never overlap.
        """
        if ticket.caller is None:
            deliver()
            return
        with self._lock:
            ticket.deliver = deliver
            line = self._lines[ticket.caller]
            if line.delivering:
                return  # whoever delivers now comes to this one too
            line.delivering = True
        while (ready := self._next(ticket.caller, line)) is not None:
            ready()

    def _next(self, caller: Hashable, line: _CallerLine) -> Callable[[], object] | None:
        with self._lock:
            if line.tickets and line.tickets[0].deliver is not None:
                return line.tickets.popleft().deliver
            line.delivering = False
            if not line.tickets:
                del self._lines[caller]
            return None

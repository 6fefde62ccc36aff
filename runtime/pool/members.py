# SPDX-License-Identifier: Apache-2.0
"""The sessions of a pool: how much work each has to do, which ends first, and which have failed."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from ..backend import Backend
from ..errors import SessionError
from ..request import RaggedBatch
from ..runner import Runner

T = TypeVar("T")

_log = logging.getLogger(__name__)


class PoolSession(Runner, Protocol):
    """What a pool asks of a Session."""

    @property
    def backend(self) -> Backend:
        """Runs arrays."""

    def feeds(self, ragged: RaggedBatch) -> dict[str, Any]:
        """The model's input arrays for a checked batch."""

    def close(self) -> None:
        """Waits for runs and frees everything."""


@dataclass(frozen=True)
class DeviceStats:
    """What one device of a pool has done.

    Attributes:
        runs: that came back.
        tokens: in them.
        busy_s: seconds with one run or more under way.
        failure: why it was taken out; "" while it is in use.
    """

    runs: int
    tokens: int
    busy_s: float
    failure: str


@dataclass(eq=False)
class Member:
    """A session and its account; the lock of Members guards the account."""

    name: str
    session: PoolSession
    backlog_s: float = 0.0  # modelled, of what is under way
    under_way: int = 0
    runs: int = 0
    tokens: int = 0
    busy_s: float = 0.0
    busy_since: float = 0.0
    failure: str = ""


class Members:
    """All devices of a pool. A run goes to the one whose work ends first.

    A device is at fault when work fails on it and then succeeds on another: it is taken out, and its name and the
    reason are kept. Work that fails everywhere is at fault itself, and no device is taken out.

    Args:
        sessions: name -> session.
    """

    def __init__(self, sessions: Mapping[str, PoolSession]) -> None:
        self._members = [Member(name, session) for name, session in sessions.items()]
        self._lock = threading.Lock()

    def in_use(self) -> list[str]:
        """Names of the devices that answer."""
        with self._lock:
            return [member.name for member in self._members if not member.failure]

    def idle(self) -> int:
        """How many devices have nothing to do."""
        with self._lock:
            return sum(not member.failure and not member.under_way for member in self._members)

    def stats(self) -> dict[str, DeviceStats]:
        """Name -> account."""
        now = time.perf_counter()
        with self._lock:
            return {
                member.name: DeviceStats(
                    member.runs,
                    member.tokens,
                    member.busy_s + (now - member.busy_since if member.under_way else 0.0),
                    member.failure,
                )
                for member in self._members
            }

    def tokens_saved(self) -> int:
        """Tokens that sessions did not compute, because sequences of a batch shared what they begin with."""
        return sum(getattr(member.session, "tokens_saved", 0) for member in self._members)

    def run(self, work: Callable[[PoolSession], T], cost_s: float, tokens: int) -> T:
        """Does work on the device that ends it first, and on another one where that fails.

        Args:
            work: is given the session; called again with another one after an exception.
            cost_s: what it costs, by the pool's table.
            tokens: in it.

        Raises:
            SessionError: it failed on every device in use. With one device alone its own error is passed on.
        """
        failures: dict[str, Exception] = {}
        while True:
            with self._borrow(cost_s, failures) as member:
                if member is None:
                    raise _failed_everywhere(failures)
                try:
                    result = work(member.session)
                except Exception as error:
                    failures[member.name] = error
                    continue
                with self._lock:
                    member.runs += 1
                    member.tokens += tokens
            if failures:
                self._take_out(failures)
            return result

    def close(self) -> None:
        """Closes all sessions, whatever becomes of one.

        Raises:
            Exception: the first one of a device in use. A device that was taken out may be beyond closing: that is
                said in the log.
        """
        errors = [error for member in self._members if (error := _close(member)) is not None]
        if errors:
            raise errors[0]

    @contextmanager
    def _borrow(self, cost_s: float, names_tried: Collection[str]) -> Iterator[Member | None]:
        """The member that ends this work first of those that have not tried it; None where all have."""
        with self._lock:
            members_left = [member for member in self._members if not member.failure and member.name not in names_tried]
            if not members_left:
                member = None
            else:
                # All would take the same time for it, so whoever has least to do ends first.
                member = min(members_left, key=lambda one: (one.backlog_s, one.under_way, one.runs))
                member.busy_since = member.busy_since if member.under_way else time.perf_counter()
                member.under_way += 1
                member.backlog_s += cost_s
        try:
            yield member
        finally:
            if member is not None:
                with self._lock:
                    member.under_way -= 1
                    # Sums of floats leave a rest, which would count as work.
                    member.backlog_s = member.backlog_s - cost_s if member.under_way else 0.0
                    member.busy_s += 0.0 if member.under_way else time.perf_counter() - member.busy_since

    def _take_out(self, failures: Mapping[str, Exception]) -> None:
        """Takes out devices on which work failed that another one did; the last one in use stays."""
        for member in self._members:
            if member.name not in failures:
                continue
            with self._lock:
                in_use = sum(not one.failure for one in self._members)
                if member.failure or in_use == 1:
                    continue
                member.failure = str(failures[member.name]) or repr(failures[member.name])
            _log.error("%s is no longer used, another device did what failed on it: %s", member.name, member.failure)


def _close(member: Member) -> Exception | None:
    """Closes a session; what went wrong, of a device in use."""
    try:
        member.session.close()
    except Exception as error:
        if not member.failure:
            return error
        _log.warning("%s is no longer used, and cannot be closed either: %s", member.name, error)
    return None


def _failed_everywhere(failures: Mapping[str, Exception]) -> Exception:
    if len(failures) == 1:
        return next(iter(failures.values()))
    reasons = "; ".join(f"{name}: {error}" for name, error in failures.items())
    return SessionError(
        f"the run failed on all {len(failures)} devices in use ({reasons}); check them: padfree doctor, nvidia-smi"
    )

# SPDX-License-Identifier: Apache-2.0
"""How a model is served: address, processes, limits."""

from __future__ import annotations

from dataclasses import dataclass, field

from padfree.contract.machine import cores
from padfree.runtime import SessionError

MOST_PORT = 65535
LONG_TEXTS = ("truncate", "refuse")
LIMIT_OPTIONS = {
    "body_bytes": "--max-body-bytes",
    "texts": "--max-texts",
    "text_bytes": "--max-text-bytes",
    "concurrency": "--max-concurrent-requests",
    "waiting_tokens": "--max-waiting-tokens",
    "seconds": "--request-seconds",
}
"""What the command calls the limits."""


@dataclass(frozen=True)
class Limits:
    """What requests may ask for; anything beyond is refused with an error of its own.

    Attributes:
        body_bytes: the largest body.
        texts: the most texts of one request.
        text_bytes: the largest text, in UTF-8: a text is tokenised as a whole, however few of its tokens are kept.
        concurrency: requests that one front-end process has under way.
        waiting_tokens: tokens that wait for the model, of all processes.
        seconds: the longest that a request may take, from its head to its answer.
    """

    body_bytes: int = 1 << 23
    texts: int = 2048
    text_bytes: int = 1 << 16
    concurrency: int = 512
    waiting_tokens: int = 1 << 20
    seconds: float = 30.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not value > 0:
                option = LIMIT_OPTIONS[name]
                raise SessionError(f"{option} is {value}, allowed: above 0; leave it out for the default")


@dataclass(frozen=True)
class ServeOptions:
    """Where and how.

    Attributes:
        host: the address to listen at.
        port: 0 takes a free one.
        processes: front-end processes, which read HTTP and tokenise; 0: one for every two cores, at most 12.
        api_keys: callers must send one of them, as `Authorization: Bearer KEY`; none: everybody is answered.
        accept_token_ids: take token ids instead of texts; they must be those of this model's tokenizer.
        long_texts: "truncate" cuts texts beyond the model's length, "refuse" answers with an error; callers of TEI's
            routes choose with `truncate`.
        grace_seconds: how long the end of the server waits for answers under way.
        drain_seconds: how long after the first signal /health says that the server ends, while it takes requests.
        access_log: where a line of JSON per request goes: a file, or "-" for stdout; None: nowhere.
        docs: whether /docs and /openapi.json describe the routes.
        limits: what requests may take.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    processes: int = 0
    api_keys: tuple[str, ...] = field(default=(), repr=False)
    accept_token_ids: bool = False
    long_texts: str = LONG_TEXTS[0]
    grace_seconds: float = 30.0
    drain_seconds: float = 0.0
    access_log: str | None = None
    docs: bool = True
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        if self.long_texts not in LONG_TEXTS:
            raise SessionError(f"long_texts is {self.long_texts!r}, allowed: {', '.join(LONG_TEXTS)}")
        if not 0 <= self.port <= MOST_PORT:
            raise SessionError(f"--port {self.port}: allowed: 1 to {MOST_PORT}, or 0 for a free one; choose another")
        if not self.grace_seconds >= 0:
            raise SessionError(f"--grace-seconds {self.grace_seconds}: allowed: 0 or more; leave it out for 30")
        if not self.drain_seconds >= 0:
            raise SessionError(f"--drain-seconds {self.drain_seconds}: allowed: 0 or more; leave it out for none")
        if self.processes < 0:
            raise SessionError(f"processes is {self.processes}, allowed: 1 or more, or 0 for a choice by the cores")
        if any(not key.isascii() or not key.isprintable() or key.strip() != key or not key for key in self.api_keys):
            raise SessionError(
                "an API key is empty, not ASCII, or has spaces around it or line ends in it; pass one that an HTTP "
                "header can carry"
            )

    @property
    def truncates(self) -> bool:
        """Whether texts beyond the model's length are cut, where a request does not say."""
        return self.long_texts == LONG_TEXTS[0]

    @property
    def front_ends(self) -> int:
        """How many front-end processes there are."""
        return self.processes or max(1, min(12, cores() // 2))

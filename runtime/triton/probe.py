# SPDX-License-Identifier: Apache-2.0
"""Asks a Triton server's models for answers, and ends the server when they give none; needs Python alone.

    python3 /opt/padfree/runtime/triton/probe.py bert bert_tokenizer --end 1

A server may call a model ready whose processes are gone: until release 26.01 it does not look. Then every request
fails until somebody starts the server again. Run this as a container's health check, or with --live as a liveness
probe, which lets a busy server be.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from typing import Any

URL = "http://localhost:8000"
IDS = range(4)  # a model may exclude some of them, padding above all
A_PROCESS = 4
"""Requests for each process of a model. The server hands them to whichever is free."""
INVALID, INTERNAL, UNAVAILABLE = 400, 500, 503


class Busy(ValueError):
    """A model refuses requests for now."""


class Unhealthy(Exception):
    """Which model does not answer, and what it says instead."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command: 0 when every model answers, else 1 and one line on stderr."""
    parser = argparse.ArgumentParser(description="Asks models of a Triton server for answers.")
    parser.add_argument("models", nargs="+", metavar="MODEL", help="a model that takes token ids, or texts")
    parser.add_argument("--url", default=URL, help=f"the server's HTTP address (default {URL})")
    parser.add_argument("--timeout", type=float, default=5.0, metavar="S", help="of one request (default 5)")
    parser.add_argument("--attempts", type=int, default=3, metavar="N", help="before it is unhealthy (default 3)")
    parser.add_argument("--pause", type=float, default=1.0, metavar="S", help="between attempts (default 1)")
    parser.add_argument(
        "--end", type=int, metavar="PID", help="send SIGTERM to this process where models answer with errors"
    )
    parser.add_argument("--live", action="store_true", help="a server that refuses requests for now is healthy")
    arguments = parser.parse_args(argv)
    has_failed = False
    for attempts_left in reversed(range(arguments.attempts)):
        try:
            for model in arguments.models:
                check(arguments.url, model, arguments.timeout)
            return 0
        except Unhealthy as error:
            has_failed, reason = True, str(error)
        except Busy as error:
            if arguments.live:
                return 0
            has_failed, reason = False, str(error)
        except (OSError, ValueError, KeyError) as error:
            # The server starts, ends or is busy: no reason to end it.
            has_failed, reason = False, f"{arguments.url}: {error}"
        sys.stderr.write(f"unhealthy: {reason}\n")
        if attempts_left:
            time.sleep(arguments.pause)
    if has_failed and arguments.end is not None:
        os.kill(arguments.end, signal.SIGTERM)
    return 1


def check(url: str, model: str, timeout_s: float = 5.0) -> None:
    """Sends the model a few of the smallest requests.

    Raises:
        Unhealthy: the model is loaded, and one of them fails in it.
        OSError, ValueError, KeyError: it is not loaded, is too busy, refuses them, or does not answer in time.
    """
    config = json.loads(_call(f"{url}/v2/models/{model}/config", None, timeout_s))
    processes = sum(group.get("count", 1) * max(1, len(group.get("gpus", []))) for group in config["instance_group"])
    bodies = list(_bodies(config))
    for _ in range(A_PROCESS * processes):
        for body in bodies:
            try:
                _call(f"{url}/v2/models/{model}/infer", body, timeout_s)
                break
            except urllib.error.HTTPError as error:
                reason = f"model '{model}' answers with {error.code}: {error.read().decode(errors='replace')}"
                if error.code == INTERNAL:
                    raise Unhealthy(reason) from error
                if error.code == UNAVAILABLE:
                    raise Busy(reason) from error
                if error.code != INVALID:
                    raise ValueError(reason) from error
        else:
            raise ValueError(reason)


def _bodies(config: Any) -> Iterator[bytes]:
    """The smallest request with every input of the model, with several token ids."""
    for number in IDS:
        inputs = []
        for item in config["input"]:
            # Lengths, where a model takes them, say how many tokens of a row count.
            value: int | str = 1 if item["name"] == "seq_lens" else number
            kind = item["data_type"].replace("TYPE_", "")
            if kind == "STRING":
                kind, value = "BYTES", "a"
            if kind == "BOOL":
                value = True
            inputs.append({"name": item["name"], "datatype": kind, "shape": [1, 1], "data": [value]})
        yield json.dumps({"inputs": inputs}).encode()


def _call(url: str, body: bytes | None, timeout_s: float) -> bytes:
    with contextlib.closing(urllib.request.urlopen(urllib.request.Request(url, body), timeout=timeout_s)) as reply:
        answer: bytes = reply.read()
        return answer


if __name__ == "__main__":
    sys.exit(main())

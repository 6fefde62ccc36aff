# SPDX-License-Identifier: Apache-2.0
"""Requests of token ids that do not fit a model, and the errors that both of padfree's backends give."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tests.support.triton_server import TritonServer

from .calls import Answer, Tensors, call_all


def bad_requests(positions: int) -> dict[str, tuple[dict[str, Any], str]]:
    """Kind -> a request and its error, for a vocabulary of 930 and the given number of positions."""
    return {
        "empty": ({"input_ids": np.zeros((1, 0), np.int32)}, r"'input_ids' has shape \[1, 0\], allowed: "),
        "over-long": (
            {"input_ids": np.ones((1, positions + 1), np.int32)},
            f"sequence 0 has {positions + 1} tokens, the model has {positions} positions",
        ),
        "unknown id": (
            {"input_ids": np.array([[5, 930]], np.int32)},
            r"'input_ids' value 930 at sequence 0, position 1: allowed 0\.\.929",
        ),
        "negative id": ({"input_ids": np.array([[-1]], np.int32)}, r"'input_ids' value -1 .*allowed 0\.\.929"),
        "other width": (
            {"input_ids": np.ones((1, 4), np.int32), "token_type_ids": np.ones((1, 3), np.int32)},
            r"'token_type_ids' has shape \[1, 3\], 'input_ids' (has|asks for) \[1, 4\]",
        ),
        "longer than its row": (
            {"input_ids": np.ones((2, 3), np.int32), "seq_lens": np.array([[3], [4]], np.int32)},
            r"'seq_lens' holds 4, allowed: 1\.\.3",
        ),
        "no tokens": (
            {"input_ids": np.ones((2, 3), np.int32), "seq_lens": np.array([[3], [0]], np.int32)},
            r"'seq_lens' holds 0, allowed: 1\.\.3",
        ),
        # The server itself refuses what the configuration rules out.
        "wrong type": ({"input_ids": np.ones((1, 3), np.int64)}, "data-type is 'INT64', but .* expects 'INT32'"),
        "wrong rank": ({"input_ids": np.ones((1, 3, 2), np.int32)}, "unexpected shape for input 'input_ids'"),
        "no ids": ({"token_type_ids": np.ones((1, 3), np.int32)}, "input"),
    }


def assert_bad_requests_fail_alone(
    server: TritonServer,
    protocol: str,
    model: str,
    positions: int,
    good: Callable[[int], Sequence[Tensors]],
    outputs: Sequence[str],
) -> list[Answer]:
    """Sends each bad request after ten good ones, and checks its error.

    Returns:
        The answers to the good requests, which `good` makes.
    """
    bad = bad_requests(positions)
    requests = list(good(10 * len(bad)))
    for at, (tensors, _) in reversed(list(enumerate(bad.values(), 1))):
        requests.insert(10 * at, tensors)
    answers = call_all(server, protocol, model, requests, outputs)
    for answer, (kind, (_, message)) in zip(answers[10::11], bad.items(), strict=True):
        assert isinstance(answer, Exception), kind
        assert re.search(message, str(answer)), str(answer)
    del answers[10::11]
    return answers

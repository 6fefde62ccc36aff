# SPDX-License-Identifier: Apache-2.0
"""The answers that requests get alone, one after the other, with which answers under load are compared."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from . import openai_client
from .client import TOLERANCE, Array, Outcome, Target, infer_inputs, judge
from .traffic import Request


def references(target: Target, pool: Sequence[Request]) -> list[Array]:
    """One array [texts, values] per request.

    Raises:
        ValueError: two answers are so similar that a swapped one would pass.
    """
    if target.protocol == "openai":
        answers = [openai_client.ask(target, request) for request in pool]
        check_apart(answers)
        return answers
    triton = importlib.import_module(f"tritonclient.{target.protocol}")
    outputs = [triton.InferRequestedOutput(target.output)]
    answers = []
    with triton.InferenceServerClient(target.address) as client:
        for request in pool:
            result = client.infer(target.model, infer_inputs(request, triton.InferInput), outputs=outputs)
            answer = result.as_numpy(target.output)
            answers.append(answer.reshape(len(answer), -1).astype(np.float32))
    check_apart(answers)
    return answers


def check_apart(answers: Sequence[Array]) -> None:
    """Raises ValueError unless each answer would be wrong for the next request."""
    for at, (one, other) in enumerate(pairwise(answers)):
        if judge(one, other) is Outcome.RIGHT:
            raise ValueError(
                f"requests {at} and {at + 1} have the same answer within {TOLERANCE:.0%}, so a crossed one would pass; "
                "take another output"
            )

# SPDX-License-Identifier: Apache-2.0
"""Texts in the order of how well they answer a query."""

from __future__ import annotations

import numpy as np
from padfree.runtime.answers import Floats, sigmoid
from padfree.runtime.text import RERANK, add_prompt

from .calls import Call, Calls
from .late import late_scores
from .vectors import floats


async def rank(
    calls: Calls, call: Call, query: str, texts: list[str], *, truncate: bool, raw: bool
) -> list[tuple[int, float]]:
    """Index and score of every text, the best first.

    Raises:
        ApiError: the model does not compare texts.
    """
    calls.check_task(RERANK)
    late = calls.served_model.late
    if late is not None:
        scores = await late_scores(calls, call, late, query, texts, truncate=truncate)
    else:
        prompt = calls.served_model.prompt(None)
        pairs = [add_prompt((query, text), prompt) for text in texts]
        rows = floats(await calls.rows(call, pairs, kind="predict", truncate=truncate))
        scores = score(calls, rows.reshape(len(texts), -1), raw)[:, 0]
    return [(int(at), float(scores[at])) for at in np.argsort(-scores, kind="stable")]


def score(calls: Calls, logits: Floats, raw: bool) -> Floats:
    """Scores of one class: what the model gives, or, where these are logits and are not asked for as such, shares."""
    return logits if raw or calls.served_model.activated else sigmoid(logits)

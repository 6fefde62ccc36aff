# SPDX-License-Identifier: Apache-2.0
"""What a server says about itself when it starts: model, routes, limits."""

from __future__ import annotations

from collections.abc import Mapping

from padfree.contract.metadata import Metadata
from padfree.runtime import Budget
from padfree.runtime.text import CLASSIFY, EMBED, RERANK, SPARSE, TAG, ServedModel

from .options import ServeOptions

TASK_ROUTES: Mapping[str, tuple[str, ...]] = {
    EMBED: ("/v1/embeddings", "/v1/embed", "/v2/embed", "/embed", "/similarity"),
    SPARSE: ("/embed_sparse",),
    RERANK: ("/v1/rerank", "/v2/rerank", "/rerank", "/predict"),
    CLASSIFY: ("/predict",),
    TAG: ("/tag",),
}
"""The routes that a model of each task answers."""
OTHER_ROUTES = ("/tokenize", "/info", "/health", "/metrics")
DOCS_ROUTES = ("/docs", "/openapi.json")
SHOWN_LABELS = 8
_TASKS = {
    EMBED: "embeddings",
    SPARSE: "sparse embeddings",
    RERANK: "reranking: one score per pair of texts",
    CLASSIFY: "labels of texts",
    TAG: "labels of words",
}


def routes_of(served_model: ServedModel) -> tuple[str, ...]:
    """The routes that answer what the model is for."""
    routes = TASK_ROUTES[served_model.task]
    return routes if served_model.late is None else (*routes[:-1], "/embed_all")


def summary(
    served_model: ServedModel, metadata: Metadata, options: ServeOptions, budget: Budget, tokens_a_second: float | None
) -> dict[str, str]:
    """What is served and how: name -> text, in the order in which they are shown.

    Args:
        served_model: the model.
        metadata: its file's.
        options: where and how.
        budget: what one run takes.
        tokens_a_second: what was measured; None: nothing.
    """
    limits = options.limits
    long = "truncated" if options.truncates else "refused"
    prompts = ", ".join(served_model.prompts)
    default = f" (default {served_model.default_prompt})" if served_model.default_prompt is not None else ""
    speed = "not measured" if tokens_a_second is None else f"{tokens_a_second:,.0f} tokens/s measured"
    runs = "" if budget.max_tokens is None else f", at most {budget.max_tokens:,} tokens per run"
    keys = len(options.api_keys)
    return {
        "model": f"{served_model.name}, {served_model.precision}",
        "task": _TASKS[served_model.task] + _shape(served_model, metadata),
        "texts": f"up to {served_model.max_length:,} tokens, longer ones are {long}",
        **({"prompts": prompts + default} if prompts else {}),
        "routes": ", ".join((*routes_of(served_model), *OTHER_ROUTES, *(DOCS_ROUTES if options.docs else ()))),
        "limits": f"{limits.texts:,} texts and {limits.body_bytes / 2**20:.3g} MiB per request, "
        f"{limits.waiting_tokens:,} waiting tokens, {limits.seconds:g} s",
        "speed": speed + runs,
        "access": f"{keys} API key{'s' * (keys != 1)}" if keys else "no API key: everybody who reaches the port",
        "processes": f"{options.front_ends} for HTTP",
    }


def _shape(served_model: ServedModel, metadata: Metadata) -> str:
    if served_model.task in (CLASSIFY, TAG):
        labels_text = ", ".join(served_model.labels[:SHOWN_LABELS])
        more = len(served_model.labels) - SHOWN_LABELS
        return f": {labels_text}{f' and {more} more' if more > 0 else ''}" if labels_text else ""
    shape = next(item.shape for item in metadata.outputs if item.name == served_model.output)
    width = shape[-1] if shape else None
    pooling = f", pooling {served_model.pooling}" if served_model.pooling else ""
    return f" of {width:,} numbers{pooling}" if width is not None and served_model.task != RERANK else ""

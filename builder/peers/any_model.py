# SPDX-License-Identifier: Apache-2.0
"""Any transformers model over packed tokens: its own code, but with attention that keeps sequences apart.

transformers looks attention up by name; by ours, models get one that takes sequences of any lengths, and no mask.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from typing import Any

from .contender import UnavailableError
from .packed_models import WHOLE, Attend, Forward, Tokens, Window

NAME = "padfree_packed"
_CHANGES = ("position_bias", "s_aux", "softcap")  # arguments of attention that ours does not compute


def packed_forward(_: Any, attend: Attend, model: Any) -> Forward:
    """The model's own code over packed tokens.

    The model's attention stays replaced. The function raises UnavailableError where its attention takes more than
    queries, keys and values.
    """
    calls = _take_attention(attend, model)
    parameters = inspect.signature(model.forward).parameters
    if "position_ids" not in parameters:
        raise UnavailableError(f"{type(model).__name__} takes no position_ids, which packed tokens need")
    first_position = _first_position(model)
    pooler, model.pooler = getattr(model, "pooler", None), None

    def forward(tokens: Tokens) -> Mapping[str, Any]:
        feeds = {"input_ids": tokens.ids[None], "position_ids": tokens.positions[None] + first_position}
        if "token_type_ids" in parameters:
            feeds["token_type_ids"] = tokens.types[None]
        if "use_cache" in parameters or hasattr(model.config, "use_cache"):
            feeds["use_cache"] = False
        hidden = model(**feeds)["last_hidden_state"]
        if not calls:
            raise UnavailableError(
                f"{type(model).__name__} computes its attention itself, and asks transformers for none"
            )
        outputs = {"last_hidden_state": hidden[0]}
        if callable(pooler):  # it takes the first token of each row
            outputs["pooler_output"] = pooler(hidden[0, tokens.firsts][:, None])
        return outputs

    return forward


def _take_attention(attend: Attend, model: Any) -> list[Any]:
    """Gives a model this attention; the list gets the module of the first layer that calls it.

    Raises UnavailableError where this transformers, or this model, does not look attention up by name.
    """
    try:
        from transformers import AttentionInterface, AttentionMaskInterface
    except ImportError as error:
        raise UnavailableError("this transformers has no attention by name; install transformers 5") from error
    attend_by_window = functools.cache(attend)
    calls: list[Any] = []

    def attention(module: Any, q: Any, k: Any, v: Any, mask: Any, **options: Any) -> tuple[Any, None]:
        changes = [name for name in _CHANGES if options.get(name) is not None]
        if mask is not None or changes:
            what = changes[0] if changes else "a mask or bias"
            raise UnavailableError(f"the attention of {type(module).__name__} is given {what}")
        if not calls:
            calls.append(module)
        scale = options.get("scaling")
        if scale is not None:  # ours divides by the root of the head size
            q = q * (scale * q.shape[-1] ** 0.5)
        rows = [item[0].transpose(0, 1) for item in (q, k, v)]
        return attend_by_window(window_of(module, options))(*rows)[None], None

    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, lambda *_, **__: None)
    try:
        model.set_attn_implementation(NAME)
    except (AttributeError, ValueError) as error:
        raise UnavailableError(f"{type(model).__name__} takes no attention by name ({error})") from error
    return calls


def window_of(module: Any, options: Mapping[str, Any]) -> Window:
    """The keys that a row of a layer sees on each side; a window of transformers counts the row itself."""
    causal = options.get("is_causal")
    if causal is None:
        causal = getattr(module, "is_causal", False)
    window = options.get("sliding_window")
    left = WHOLE[0] if window is None else window - 1
    return left, 0 if causal else left


def _first_position(model: Any) -> int:
    """The first token's position: RoBERTa's kind begins after the padding id."""
    tables = [
        module
        for name, module in model.named_modules()
        if name.rpartition(".")[2] == "position_embeddings" and getattr(module, "padding_idx", None) is not None
    ]
    return int(tables[0].padding_idx) + 1 if tables else 0

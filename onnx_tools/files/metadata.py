# SPDX-License-Identifier: Apache-2.0
"""padfree's metadata in a model's message: whether the model has been rewritten, and what is said about it then."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from onnx import ModelProto
from padfree.contract.fields import decode
from padfree.contract.names import (
    DEFINITION_METADATA_KEY,
    DOMAIN,
    FIXED_METADATA_KEY,
    ONNX_METADATA_KEY,
    TEXT_METADATA_KEY,
)

from ..errors import RewriteError
from .model import replace_items


def is_rewritten(model: ModelProto) -> bool:
    """Whether the model carries padfree's metadata; what somebody else wrote under that name does not count."""
    texts = [item.value for item in model.metadata_props if item.key == ONNX_METADATA_KEY]
    return any('"format"' in text for text in texts) or (
        bool(texts) and any(item.domain == DOMAIN for item in model.opset_import)
    )


def read_metadata(model: ModelProto, error: type[Exception] = RewriteError) -> dict[str, Any]:
    """The metadata object in a rewritten model. Raises `error` where it is not JSON."""
    text = next(item.value for item in model.metadata_props if item.key == ONNX_METADATA_KEY)
    try:
        raw: dict[str, Any] = decode(text)
    except ValueError as damaged:
        raise error(f"the model's padfree metadata is damaged ({damaged}); rewrite the model again") from damaged
    return raw


def text_entry(model: ModelProto) -> dict[str, Any]:
    """What an exported model carries for the entry `text` of its metadata: that entry, or nothing.

    Raises RewriteError where it is not JSON.
    """
    text = _annotation(model, TEXT_METADATA_KEY)
    return {} if text is None else {"text": text}


def definition_entry(model: ModelProto) -> dict[str, Any]:
    """What a model that a definition wrote carries for the entry `definition` of its metadata: that entry, or nothing.

    Raises RewriteError where it is not JSON.
    """
    definition = _annotation(model, DEFINITION_METADATA_KEY)
    return {} if definition is None else {"definition": definition}


def fixed_entry(model: ModelProto) -> dict[str, int | float]:
    """The inputs of an exported model that were bound to numbers. Raises RewriteError where that is not JSON."""
    entry: dict[str, int | float] = _annotation(model, FIXED_METADATA_KEY) or {}
    return entry


def _annotation(model: ModelProto, key: str) -> Any:
    """What an exported model carries under a key; None where there is nothing."""
    text = next((item.value for item in model.metadata_props if item.key == key), None)
    try:
        return None if text is None else decode(text)
    except ValueError as damaged:
        raise RewriteError(f"'{key}' of the model is damaged ({damaged}); make it again") from damaged


def write_metadata(model: ModelProto, metadata: Mapping[str, Any]) -> None:
    """Writes the metadata object into a model, in place of what padfree has written there before."""
    own = (ONNX_METADATA_KEY, TEXT_METADATA_KEY, FIXED_METADATA_KEY, DEFINITION_METADATA_KEY)
    replace_items(model.metadata_props, (item for item in model.metadata_props if item.key not in own))
    model.metadata_props.add(key=ONNX_METADATA_KEY, value=json.dumps(metadata))

# SPDX-License-Identifier: Apache-2.0
"""JSON schemas that the OpenAPI description is made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Schema = dict[str, Any]

STRING: Schema = {"type": "string"}
NUMBER: Schema = {"type": "number"}
BOOLEAN: Schema = {"type": "boolean"}
VECTOR: Schema = {"type": "array", "items": NUMBER}


def objects(fields: Mapping[str, Schema], required_count: int | None = None) -> Schema:
    """Objects with these fields, of which the first `required_count` are always there; None: all."""
    return {"type": "object", "properties": dict(fields), "required": list(fields)[:required_count]}


def optional(schema: Schema, default: Any) -> Schema:
    """A field with a default."""
    return {**schema, "default": default}


def choice(*values: str) -> Schema:
    """One of some texts."""
    return {"type": "string", "enum": list(values)}


def count(least: int = 1) -> Schema:
    """A whole number."""
    return {"type": "integer", "minimum": least}


def one_of(*schemas: Schema) -> Schema:
    """Any of several."""
    return {"anyOf": list(schemas)}


def texts_or_one(most: int, *, ids: bool) -> Schema:
    """A text, or a list of texts; with `ids` also token ids instead of them."""
    rows: Schema = {"type": "array", "items": count(0), "minItems": 1}
    many: Schema = {"type": "array", "minItems": 1, "maxItems": most}
    return one_of(STRING, {**many, "items": STRING}, *([rows, {**many, "items": rows}] if ids else []))


ERROR = objects({"error": STRING, "error_type": STRING})
OPENAI_ERROR = objects({"error": objects({"message": STRING, "type": STRING, "code": {"type": "integer"}})})

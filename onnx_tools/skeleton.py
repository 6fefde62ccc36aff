# SPDX-License-Identifier: Apache-2.0
"""Copies of models without the values of their weights, which are most of a model."""

from __future__ import annotations

from typing import Any

from onnx import ModelProto


def skeleton_of(model: ModelProto) -> ModelProto:
    """A copy whose initializers have name, type and shape alone."""
    result = ModelProto()
    _copy_fields(model, result, leave="graph")
    _copy_fields(model.graph, result.graph, leave="initializer")
    for tensor in model.graph.initializer:
        result.graph.initializer.add(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
    return result


def _copy_fields(source: Any, result: Any, leave: str) -> None:
    """Copies what one protobuf message holds to another, all but the field `leave`."""
    for field, value in source.ListFields():
        if field.name == leave:
            continue
        if hasattr(value, "extend"):
            getattr(result, field.name).extend(value)
        elif hasattr(value, "CopyFrom"):
            getattr(result, field.name).CopyFrom(value)
        else:
            setattr(result, field.name, value)

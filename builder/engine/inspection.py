# SPDX-License-Identifier: Apache-2.0
"""Checks that a built engine holds what the graph asked for."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping

from ..errors import BuildError


def layer_names(information: str) -> list[str]:
    """Layer names from the inspector's JSON: a list of names, or of objects with a name, as verbosity has it.

    Raises:
        BuildError: not the inspector's JSON.
    """
    try:
        layers = json.loads(information)["Layers"]
        return [layer if isinstance(layer, str) else str(layer["Name"]) for layer in layers]
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise BuildError(
            f"TensorRT's engine inspector gave something unreadable ({type(error).__name__}: {error}); "
            "report it with your TensorRT version"
        ) from error


def count_engine_plugins(names: list[str], expected: Mapping[str, str]) -> dict[str, int]:
    """Plugin layers of an engine by operator.

    Args:
        names: the engine's layer names.
        expected: node name -> operator of every plugin layer that the outputs need.

    Raises:
        BuildError: a plugin layer is missing.
    """
    present = set(names)
    missing = [f"{name} ({op})" for name, op in expected.items() if name not in present]
    if missing:
        raise BuildError(
            f"the built engine lacks {len(missing)} of {len(expected)} plugin layers, first {missing[0]}; it is not "
            "the graph that was checked: rewrite the model again, or report it with your TensorRT version"
        )
    return dict(Counter(expected.values()))

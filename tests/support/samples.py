# SPDX-License-Identifier: Apache-2.0
"""Valid attributes of every operator, in all variants that change tensors, and numbers for the letters of shapes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace

from padfree.onnx_tools.operators import OPERATORS
from padfree.onnx_tools.operators.spec import AttributeSpec, AttributeValue, TensorSpec

from .attention_tasks import most_entries

LETTERS = {"T": 7, "B": 3, "S": 5, "E": 16, "H": 2, "KVH": 2, "D": 8, "V": 11, "F": 3, "P": 9, "N": 320, "K": 128}
LETTERS |= {"L": most_entries(LETTERS["T"], LETTERS["B"], LETTERS["H"]), "R": 3, "W": 40, "C": 256}
GROUP = (4, 6)  # the axes that "..." and "*" stand for
CHOSEN: dict[tuple[str, str], tuple[int, ...]] = {
    ("PadfreeAttention", "window_left"): (64, -1),
    ("PadfreeLinear", "rotary_features"): (0, LETTERS["C"]),
    ("PadfreeLinearFp8", "rotary_features"): (0, LETTERS["C"]),
    ("PadfreeLinearInt8", "rotary_features"): (0, LETTERS["C"]),
}
"""Values of numbers that change tensors or depend on others; all other numbers have one value."""


def plain(operator: str, **changes: AttributeValue) -> dict[str, AttributeValue]:
    """Attributes of a node that does as little as possible, without those that every node has to give itself."""
    values = {
        spec.name: _plain_value(spec)
        for spec in OPERATORS[operator].attributes
        if spec.outside_engines is not None or (spec.letter not in ("H", "KVH", "D") and spec.name != "scale")
    }
    return {**values, **changes}


def _plain_value(spec: AttributeSpec) -> AttributeValue:
    if spec.allowed is not None:
        return spec.allowed[0]
    if spec.type == "int":
        return int(spec.minimum or 0)
    return 1.0 if spec.minimum else 1e-5 if spec.name == "epsilon" else 0.0


PLAIN_ATTENTION, PLAIN_EMBEDDING = plain("PadfreeAttention"), plain("PadfreeEmbedding")
PLAIN_NORM, PLAIN_POOL = plain("PadfreeLayerNorm"), plain("PadfreePool", mode="mean")
PLAIN_LINEAR, PLAIN_LINEAR_FP8 = plain("PadfreeLinear"), plain("PadfreeLinearFp8")


def _values(operator: str, spec: AttributeSpec) -> tuple[AttributeValue, ...]:
    if spec.allowed is not None or spec.type != "int":
        return spec.allowed or (0.125,)
    smallest = int(spec.minimum or 0)
    return CHOSEN.get((operator, spec.name)) or (LETTERS[spec.letter] if spec.letter else smallest,)


def variants(operator: str) -> Iterator[dict[str, AttributeValue]]:
    """All combinations of an operator's flags and choices that it allows."""
    spec = OPERATORS[operator]
    names = [attribute.name for attribute in spec.attributes]
    for values in itertools.product(*(_values(operator, attribute) for attribute in spec.attributes)):
        attributes = dict(zip(names, values, strict=True))
        if all(second.holds(attributes) for first, second in spec.requires if first.holds(attributes)):
            yield attributes


def fields_in_engine(operator: str, attributes: Mapping[str, AttributeValue]) -> dict[str, AttributeValue]:
    """What a node of an engine has of them: attributes that came later only where they say something."""
    later = {spec.name: spec.outside_engines for spec in OPERATORS[operator].attributes if spec.is_later}
    return {name: value for name, value in attributes.items() if later.get(name) != value}


def all_variants() -> list[tuple[str, dict[str, AttributeValue]]]:
    return [(operator, attributes) for operator in OPERATORS for attributes in variants(operator)]


def concrete_shape(tensor: TensorSpec, letters: Mapping[str, int] = LETTERS) -> tuple[int, ...]:
    """The tensor's shape, with numbers for the letters in its description."""
    groups = [axis for axis in tensor.axes if axis in ("...", "*")]
    if not groups:
        return tensor.sizes(letters)
    at = tensor.axes.index(groups[0])
    plain = replace(tensor, shape=f"[{','.join(axis for axis in tensor.axes if axis not in groups)}]")
    sizes = plain.sizes(letters)
    return (*sizes[:at], *GROUP, *sizes[at:])

# SPDX-License-Identifier: Apache-2.0
"""Shapes and types of what padfree operators make, with numbers for the letters of their description."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs
import pytest
from padfree.onnx_tools.analysis.symbolic.facts import Facts
from padfree.onnx_tools.analysis.symbolic.own import padfree
from padfree.onnx_tools.analysis.symbolic.poly import Poly
from padfree.onnx_tools.operators import OPERATORS, TensorSpec

from tests.support.samples import LETTERS, concrete_shape, variants

TYPES = {
    "int32": "int32",
    "float32": "float32",
    "fp8": "float8_e4m3fn",
    "int8": "int8",
    "act": "float16",
    "act or int32": "float16",
}


def facts_of(tensor: TensorSpec) -> Facts:
    shape = tuple(Poly.of(size) for size in concrete_shape(tensor))
    return Facts(shape, TYPES[tensor.type])


def in_numbers(facts: Facts) -> tuple[int | None, ...]:
    """The shape, with numbers for letters that no input determines."""
    assert facts.shape is not None
    values = {letter: Poly.of(number) for letter, number in LETTERS.items()}
    return tuple(size.substitute(values, {}).constant() for size in facts.shape)


@pytest.mark.parametrize("operator", OPERATORS)
def test_every_variant_makes_what_its_description_says(operator: str) -> None:
    spec = OPERATORS[operator]
    for attributes in list(variants(operator))[:64]:
        inputs, outputs = spec.inputs_for(attributes), spec.outputs_for(attributes)
        node = gs.Node(operator, operator, attributes, [], [gs.Variable(item.name, np.float16) for item in outputs])
        made = padfree(node, [facts_of(item) for item in inputs])
        assert [item.dtype for item in made] == [TYPES[item.type] for item in outputs]
        assert [in_numbers(item) for item in made] == [concrete_shape(item) for item in outputs]


def test_nothing_is_known_of_rows_whose_shape_is_not_known() -> None:
    node = gs.Node("PadfreeRotary", "n", {"head_size": 8, "num_heads": 2, "pairing": "half"})
    made = padfree(node, [Facts(dtype="float32"), Facts((Poly.atom("T"),), "int32"), Facts(dtype="float32")])
    assert [(item.shape, item.dtype) for item in made] == [(None, "float32")]

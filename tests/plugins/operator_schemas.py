# SPDX-License-Identifier: Apache-2.0
"""plugins/shell/schemas.h, generated from the operators' description: `python -m tests.plugins.operator_table`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from padfree.onnx_tools.operators import OPERATORS
from padfree.onnx_tools.operators.spec import INT32_MAX, AttributeSpec, Condition, OperatorSpec, PluginRange, TensorSpec

HEADER = Path(__file__).resolve().parents[2] / "plugins" / "shell" / "schemas.h"
_KINDS = {
    "int32": "int32",
    "float32": "float",
    "act": "activation",
    "act or int32": "element",
    "fp8": "e4m3",
    "int8": "int8",
}
_BEGIN = """// SPDX-License-Identifier: Apache-2.0
// The operators as onnx_tools/operators describes them. Written by tests/plugins/operator_table.py; not by hand.
#pragma once

#include <array>
#include <cstdint>

#include "shell/operator.h"

// clang-format off
namespace padfree {
"""


def render() -> str:
    """The whole header."""
    operators = [OPERATORS[name] for name in sorted(OPERATORS)]
    functions = [f"{_function(spec)}Operator" for spec in operators]
    return "\n".join(
        [
            _BEGIN,
            *(line for spec in operators for line in _operator(spec)),
            "// One of a plugin.cpp each.",
            *(f"OperatorInfo {name}();" for name in functions),
            "",
            "inline constexpr std::array kOperators = {",
            *(f"    {name}," for name in functions),
            "};",
            "",
            "}  // namespace padfree",
            "",
        ]
    )


def _function(spec: OperatorSpec) -> str:
    name = spec.name.removeprefix("Padfree")
    return name[0].lower() + name[1:]


def _operator(spec: OperatorSpec) -> list[str]:
    letters = [(item.letter, item.name) for item in spec.attributes if item.letter]
    measured = [f'measuredField("{spec.measurement}")'] if spec.measurement else []
    return [
        f"inline OperatorSchema {_function(spec)}Schema() {{",
        "  return {",
        f'      "{spec.name}",',
        *_list([*map(_field, spec.attributes), *measured]),
        *_list(map(_tensor, spec.inputs)),
        *_list(map(_tensor, spec.outputs)),
        *_list(f"{{{_condition(first)}, {_condition(second)}}}" for first, second in spec.requires),
        *_list(map(_condition, spec.in_half)),
        *_list(f'{{"{letter}", "{name}"}}' for letter, name in letters),
        "  };",
        "}",
        "",
    ]


def _list(items: Iterable[str]) -> list[str]:
    lines = [f"          {item}," for item in items]
    return ["      {", *lines, "      },"] if lines else ["      {},"]


def _field(spec: AttributeSpec) -> str:
    name = f'"{spec.name}"'
    if spec.type == "string":
        return f"choiceField({name}, {{{_texts(spec.allowed or ())}}})"
    if spec.type == "float":
        limits = [f"{limit!r}f" for limit in (spec.minimum, spec.maximum) if limit is not None]
        return f"realField({', '.join([name, *limits])})"
    if spec.allowed == (0, 1):
        return f"{'laterFlagField' if spec.is_later else 'flagField'}({name})"
    takes = spec.plugin or PluginRange()
    least = spec.minimum if takes.minimum is None else takes.minimum
    most = spec.maximum if takes.maximum is None else takes.maximum
    limits = ["INT32_MAX" if limit == INT32_MAX else str(limit) for limit in (least, most)]
    return f"integerField({', '.join([name, *limits, *([str(takes.multiple_of)] if takes.multiple_of > 1 else [])])})"


def _tensor(spec: TensorSpec) -> str:
    when = f", {{{', '.join(map(_condition, spec.conditions))}}}" if spec.conditions else ""
    return f'{_KINDS[spec.type]}Tensor("{spec.name}", "{spec.shape}"{when})'


def _condition(condition: Condition) -> str:
    if condition.values == (1,):
        return f'isSet("{condition.attribute}")'
    return f'{{"{condition.attribute}", {{{_texts(condition.values)}}}}}'


def _texts(values: Iterable[object]) -> str:
    return ", ".join(f'"{value}"' for value in values)

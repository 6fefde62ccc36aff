# SPDX-License-Identifier: Apache-2.0
"""What is generated from the operators' description: their part of docs/reference/operators.md, and a header.

python -m tests.plugins.operator_table      writes both again
"""

from __future__ import annotations

import re
import textwrap

from padfree.onnx_tools.operators import OPERATORS
from padfree.onnx_tools.operators.spec import PRECISIONS, AttributeSpec, OperatorSpec, TensorSpec

from tests.support.pages import page

from . import operator_schemas

DOCUMENT = page("operators")
BEGIN = "<!-- operators: written by tests/plugins/operator_table.py -->"
END = "<!-- end of operators -->"

_LINE = 120
_FIELD_TYPES = {"int": "INT32", "float": "FLOAT32", "string": "CHAR"}


def _tensor(spec: TensorSpec, role: str) -> str:
    there = " and ".join(str(condition) for condition in spec.conditions)
    return f"| {role} | `{spec.name}` | {spec.type} `{spec.shape}` | {there} |"


def _attribute(spec: AttributeSpec) -> str:
    allowed = "" if spec.allowed is None else " (" + ", ".join(f"`{value}`" for value in spec.allowed) + ")"
    outside = "" if spec.outside_engines is None else f". Only in engines; in files it is `{spec.outside_engines}`"
    outside = f". A node without it means `{spec.outside_engines}`" if spec.is_later else outside
    return f"| attribute | `{spec.name}` | {_FIELD_TYPES[spec.type]} | {spec.doc}{allowed}{outside} |"


def _precisions(spec: OperatorSpec) -> str:
    if spec.plugin_precisions == PRECISIONS:
        return ""
    return f" The plugin takes only {' and '.join(name.upper() for name in spec.plugin_precisions)}."


def _fill(text: str, indent: str = "", first: str = "") -> str:
    return textwrap.fill(
        text,
        _LINE,
        initial_indent=first,
        subsequent_indent=indent,
        break_on_hyphens=False,
        break_long_words=False,
    )


def _sentences(text: str) -> list[str]:
    """The first sentence as a paragraph, the others as a list."""
    first, *others = re.split(r"(?<=\.) ", text)
    return [_fill(first), *([""] if others else []), *(_fill(other, "  ", "- ") for other in others)]


def _operator(spec: OperatorSpec) -> list[str]:
    return [
        f"### {spec.name}",
        "",
        *_sentences(spec.doc + _precisions(spec)),
        "",
        "| | name | type | present when, or meaning |",
        "|---|---|---|---|",
        *(_tensor(tensor, "input") for tensor in spec.inputs),
        *(_tensor(tensor, "output") for tensor in spec.outputs),
        *(_attribute(attribute) for attribute in spec.attributes),
        "",
    ]


def render() -> str:
    """The operators' part of the page, without the two marker lines."""
    return "\n".join(line for spec in OPERATORS.values() for line in _operator(spec))


def write() -> str:
    """The text between the marker lines."""
    text = DOCUMENT.read_text(encoding="utf-8")
    return text.split(BEGIN + "\n")[1].split(END)[0]


def main() -> None:
    """Replaces the text between the marker lines, and the header."""
    operator_schemas.HEADER.write_text(operator_schemas.render(), encoding="utf-8")
    before, rest = DOCUMENT.read_text(encoding="utf-8").split(BEGIN + "\n")
    DOCUMENT.write_text(before + BEGIN + "\n" + render() + END + rest.split(END)[1], encoding="utf-8")


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""A program that renders a chat template in Jinja's immutable sandbox, within limits of time and memory.

Reads JSON from stdin: {"template": text, "variables": [object, ...]}; writes {"texts": [text, or null, ...], "error"}.
"""

from __future__ import annotations

import json
import resource
import sys
from datetime import datetime
from typing import Any

from jinja2 import nodes
from jinja2.exceptions import TemplateError
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment

SECONDS, BYTES = 5, 1 << 29
"""The limits: CPU time, and memory beyond the interpreter's."""


class _Generation(Extension):
    """{% generation %}: marks what an assistant says, for training; the text stays as it is."""

    tags = {"generation"}  # noqa: RUF012 - as the base class has it

    def parse(self, parser: Any) -> Any:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


def _refuse(message: str) -> None:
    raise TemplateError(message)


def _to_json(value: Any, **options: Any) -> str:
    return json.dumps(value, **{"ensure_ascii": False, **options})


def render(template: str, variables: list[dict[str, Any]]) -> dict[str, Any]:
    """A text for each object of variables, None where the template refuses it, and why it refused the last of these."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals.update(raise_exception=_refuse, strftime_now=lambda form: datetime.now().strftime(form))
    texts, error = list[str | None](), ""
    try:
        compiled = environment.from_string(template)
    except Exception as problem:  # of many kinds: the template is anybody's
        return {"texts": [None] * len(variables), "error": f"{type(problem).__name__}: {problem}"}
    for values in variables:
        text, problem_said = _render(compiled, values)
        texts.append(text)
        error = problem_said or error
    return {"texts": texts, "error": error}


def _render(compiled: Any, values: dict[str, Any]) -> tuple[str | None, str]:
    """A text, or why there is none."""
    try:
        return str(compiled.render(**values)), ""
    except Exception as problem:
        return None, f"{type(problem).__name__}: {problem}"


def main() -> None:
    """Reads, renders and writes."""
    question = json.load(sys.stdin)
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    resource.setrlimit(resource.RLIMIT_DATA, (BYTES, BYTES))
    json.dump(render(question["template"], question["variables"]), sys.stdout)


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""Why tests are skipped, in one line per reason with its remedy."""

from __future__ import annotations

import importlib.util
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

EXTRAS: Mapping[str, str] = MappingProxyType(
    {
        "accelerate": "training",
        "auditwheel": "dev",
        "cmake": "dev",
        "cohere": "clients",
        "cuda": "trt",
        "elftools": "dev",
        "fastapi": "clients",
        "httptools": "serve",
        "kubernetes_validate": "dev",
        "langchain_openai": "clients",
        "llama_index": "clients",
        "matplotlib": "bench",
        "moto": "dev",
        "onnxscript": "export",
        "openai": "clients",
        "orjson": "serve",
        "promql_parser": "dev",
        "pyarrow": "bulk",
        "pycuda": "pycuda",
        "ray": "ray",
        "sentence_transformers": "sentence-transformers",
        "starlette": "serve",
        "tensorrt": "trt",
        "torch": "export",
        "transformers": "export",
        "tritonclient": "triton",
        "uvicorn": "serve",
        "yaml": "dev",
    }
)
"""The module that a test imports -> the extra of padfree that brings it."""
MOST_CHARACTERS = 160  # of a line
_NOT_IMPORTED = re.compile(r"could not import '([\w.]+)'")


def without(*modules: str) -> str | None:
    """Why tests that import these modules are skipped, with the remedy; None where all are installed."""
    missing = [module for module in modules if not _is_installed(module)]
    if not missing:
        return None
    extras = dict.fromkeys(EXTRAS[module] for module in missing if module in EXTRAS)
    others = [module for module in missing if module not in EXTRAS]
    wanted = [f"'.[{','.join(extras)}]'"] * bool(extras) + others
    return f"needs {', '.join(missing)}: pip install {' '.join(wanted)}"


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the package around the module is missing
        return False


class LeftOut(pytest.File):
    """A file of tests that is not imported: one skipped item stands for all of them."""

    reason: str

    def collect(self) -> Iterable[pytest.Item]:
        """Yields the item."""
        item: _AllOfThem = _AllOfThem.from_parent(self, name="all of it")
        yield item

    @classmethod
    def of(cls, path: Path, parent: pytest.Collector, reason: str) -> LeftOut:
        """Makes the item for a path, to be returned from pytest_pycollect_makemodule."""
        result: LeftOut = cls.from_parent(parent, path=path)
        result.reason = reason
        return result


class _AllOfThem(pytest.Item):
    def runtest(self) -> None:
        assert isinstance(self.parent, LeftOut)
        pytest.skip(self.parent.reason)

    def reportinfo(self) -> tuple[Path, int, str]:
        """The location; pytest wants a line for what a mark skips."""
        return self.path, 0, self.name


def shown_reason(reason: str) -> str:
    """The reason as the summary shows it: messages of pytest.importorskip become what to install."""
    text = " ".join(reason.removeprefix("Skipped: ").split())
    module = _NOT_IMPORTED.match(text)
    if module is not None:
        name = module.group(1).partition(".")[0]
        # If a package of padfree's own cannot be imported, the end of the message names the module that is missing.
        name = name if name != "padfree" else text.rpartition("'")[0].rpartition("'")[2].partition(".")[0]
        extra = f"'.[{EXTRAS[name]}]'" if name in EXTRAS else name
        text = f"needs {name}: pip install {extra}"
    return text if len(text) <= MOST_CHARACTERS else f"{text[: MOST_CHARACTERS - 3]}..."


def summary(reasons: Iterable[str]) -> list[str]:
    """One line per reason, the most frequent first, each with the number of tests or files."""
    counted = Counter(shown_reason(reason) for reason in reasons)
    return [f"{number:6,}  {reason}" for reason, number in counted.most_common()]

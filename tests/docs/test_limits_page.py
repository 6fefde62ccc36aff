# SPDX-License-Identifier: Apache-2.0
"""docs/reference/limits.md: its numbers are the same as in the code."""

from __future__ import annotations

import inspect

import pytest
from padfree.builder import cli
from padfree.builder.engine.profile import DEFAULT_MAX_TOKENS
from padfree.contract.metadata import MOST_WIDTH
from padfree.onnx_tools.analysis.positional import LONGEST_TRIAL
from padfree.onnx_tools.files import model_file
from padfree.onnx_tools.importing import expansion
from padfree.onnx_tools.operators.catalog import MAX_BIAS_RANGE, MAX_HEAD_SIZE
from padfree.onnx_tools.operators.functions import MAX_OPSET
from padfree.onnx_tools.operators.linear_specs import MAX_NORMED_WIDTH
from padfree.onnx_tools.precision.ranges import LARGEST
from padfree.runtime import Session
from padfree.runtime.batching import Batcher
from padfree.runtime.text.hazards import MOST_GROWTH

from tests.support.pages import page

PAGE = page("limits").read_text("utf-8")


def row(start: str) -> str:
    (line,) = (line for line in PAGE.splitlines() if line.startswith(f"| {start}"))
    return line


def serve_default(option: str) -> int:
    return int(getattr(cli.make_parser().parse_args(["serve", "model.plan"]), option))


@pytest.mark.parametrize(
    ("start", "words"),
    [
        ("ONNX opset", f"7 to {MAX_OPSET};"),
        ("nodes of a file", f"{model_file.MOST_NODES:,}; {expansion.MOST_NODES:,} after"),
        ("numbers per token", f"{MOST_WIDTH:,}"),
        ("head size", f"8 to {MAX_HEAD_SIZE} in steps of 8"),
        ("table of a bias", f"{MAX_BIAS_RANGE:,} tokens"),
        ("positions for which", f"{LONGEST_TRIAL:,}"),
        ("K and N", f"up to {MAX_NORMED_WIDTH:,}"),
        ("numbers in fp16", f"{LARGEST['fp16']:,.0f}"),
        ("`--max-tokens`", f"at most {DEFAULT_MAX_TOKENS:,}"),
        ("CUDA graphs", f"{inspect.signature(Session).parameters['max_graphs'].default} sizes per context"),
        ("`padfree serve`", f"{serve_default('max_text_bytes'):,}; {serve_default('max_texts'):,} and 8 MiB; "),
        ("`padfree serve`", f"; {serve_default('max_waiting_tokens'):,}; {serve_default('request_seconds')} |"),
        ("tokenizers", f"{MOST_GROWTH:,} characters"),
        ("requests that wait", f"{inspect.signature(Batcher).parameters['max_waiting'].default:,} by default"),
    ],
)
def test_numbers_are_those_of_the_code(start: str, words: str) -> None:
    assert words in row(start)


def test_bytes_of_texts() -> None:
    arguments = cli.make_parser().parse_args(["embed", "m.plan", "--input", "a", "-o", "b"])
    assert f"{arguments.max_text_bytes:,}" in row("`padfree embed`")
    assert serve_default("max_body_bytes") == 8 << 20

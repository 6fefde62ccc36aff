# SPDX-License-Identifier: Apache-2.0
"""Tiny rerankers that answer with a token, and what transformers makes of pairs (fixtures/make_scorers.py)."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from .safetensors_files import write_tensors
from .tiny_folders import draw

FOLDER = Path(__file__).resolve().parents[1] / "fixtures" / "scorers"
LIMIT = 230
"""Tokens per pair; the template leaves room for part of the longest document, and for all of the others."""
PAIRS: tuple[tuple[str, str], ...] = (
    ("What is the capital of China?", "The capital of China is Beijing."),
    ("Explain gravity", "Gravity is a force that attracts two bodies. " * 2),
    ("a", "b"),
    ("caf\u00e9?\n", " rain \u00fcber alles\n\n"),
    ("query", "document \U0001f600 " * 30),
)
TEXT = "Query: {query}\nDocument: {document}\nRelevant:"
CHAT = """{%- if messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == "user" %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}"""
ROLES = """{%- set query = messages | selectattr("role", "eq", "query") | map(attribute="content") | first -%}
{%- set document = messages | selectattr("role", "eq", "document") | map(attribute="content") | first -%}
<|im_start|>user
Does it answer? <Query>: {{ query | trim }}
<Document>: {{ document | trim }}<|im_end|>
<|im_start|>assistant
"""


@dataclass(frozen=True)
class Scorer:
    """The answers of one reranker.

    Attributes:
        ids: of every pair of PAIRS.
        cut: of every pair, with at most LIMIT tokens; empty if they are not recorded.
        scores: of every pair, alone.
        options: for commands, if the folder does not specify everything.
    """

    ids: list[list[int]]
    cut: list[list[int]]
    scores: list[float]
    options: list[str]


def read(name: str) -> Scorer:
    """Reads a fixture's answers."""
    raw = json.loads((FOLDER / name / "answers.json").read_text("utf-8"))
    return Scorer(raw["ids"], raw["cut"], raw["scores"], raw.get("options", []))


def write_scorer(name: str, folder: Path) -> Path:
    """Writes the folder of a fixture, with weights."""
    shutil.copytree(FOLDER / name, folder, ignore=shutil.ignore_patterns("answers.json"))
    shapes = json.loads((FOLDER / name / "answers.json").read_text("utf-8"))["tensors"]
    write_tensors(folder / "model.safetensors", {key: draw(key, tuple(shape)) for key, shape in shapes.items()})
    return folder

# SPDX-License-Identifier: Apache-2.0
"""Types and ranges in metadata are checked once, when it is read, so that later code can rely on them."""

from __future__ import annotations

import contextlib
import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from padfree.contract.fields import decode
from padfree.contract.names import INPUT_ROLES
from padfree.runtime import Metadata, SessionError
from padfree.runtime.plan_files import parse_metadata, read_sidecar

VALID: dict[str, Any] = {
    "format": 1,
    "interface": "packed",
    "precision": "fp16",
    "inputs": [
        {"name": "input_ids", "role": "tokens", "limit": 100, "dtype": "int32"},
        {"name": "seq_lens", "role": "seq_lens", "limit": None, "dtype": "int32"},
    ],
    "outputs": [{"name": "hidden", "layout": "packed", "dtype": "float16", "shape": [None, 8]}],
    "max_positions": 16,
    "coverage": {"excluded_ids": {"input_ids": [1]}},
    "plugins": {"PadfreeAttention": 2},
    "engine": {
        "tensorrt": "10.6.0",
        "gpu_name": "NVIDIA H200",
        "compute_capability": "9.0",
        "profile": {"min_tokens": 1, "opt_tokens": 20, "max_tokens": 24, "max_batch": 3, "max_seq_len": 12},
        "plan_bytes": 4,
        "plan_sha256": "0" * 64,
        "plugin_layers": {"PadfreeAttention": 2},
    },
}


def with_value(path: str, value: Any) -> dict[str, Any]:
    raw = copy.deepcopy(VALID)
    *steps, last = [int(step) if step.isdigit() else step for step in path.split(".")]
    location: Any = raw
    for step in steps:
        location = location[step]
    location[last] = value
    return raw


def test_what_is_whole_is_read() -> None:
    metadata = parse_metadata(VALID, "it")
    assert metadata.engine is not None
    assert metadata.engine.profile.max_tokens == 24
    assert metadata.inputs[0].excluded == (1,)
    assert metadata.outputs[0].shape == (None, 8)


@pytest.mark.parametrize(
    "name", ["bert/embeddings:0", "Eingabe-für-Wörter", "名前", "a b", "../x", "$(id)", "'quoted'", 'a"b']
)
def test_names_of_tensors_are_anything_that_can_be_shown(name: str) -> None:
    assert parse_metadata(with_value("inputs.0.name", name), "it").inputs[0].name == name


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("inputs.0.name", "", "inputs[0].name is '', allowed: 1 to 4096 printable characters"),
        ("inputs.0.name", "a\nb", r"inputs[0].name is 'a\nb', allowed"),
        ("inputs.0.name", "\x1b[2Jx", r"is '\x1b[2Jx', allowed"),
        ("inputs.0.name", "x\u202etxt", r"is 'x\u202etxt', allowed"),
        ("inputs.0.name", 3, "inputs[0].name is 3, allowed"),
        ("inputs.0.limit", "100", "inputs[0].limit is '100', allowed: whole numbers from 1"),
        ("inputs.0.limit", True, "inputs[0].limit is True, allowed"),
        ("inputs.0.limit", 0, "inputs[0].limit is 0, allowed"),
        ("inputs.0.limit", 2.0, "inputs[0].limit is 2.0, allowed"),
        ("inputs.0.limit", math.inf, "inputs[0].limit is inf, allowed"),
        ("inputs.0.limit", math.nan, "inputs[0].limit is nan, allowed"),
        ("inputs.0.limit", 2**63, "inputs[0].limit is 9223372036854775808, allowed"),
        ("inputs.0.role", "mystery", f"inputs[0].role is 'mystery', allowed: {', '.join(INPUT_ROLES)}"),
        ("inputs.0.role", ["tokens"], "inputs[0].role is ['tokens'], allowed"),
        ("inputs.0.dtype", "INT 32", "inputs[0].dtype is 'INT 32', allowed"),
        ("inputs.1.name", "input_ids", "inputs has 'input_ids' twice"),
        ("inputs", {"name": "x"}, "inputs is {'name': 'x'}, allowed: a list"),
        ("inputs", ["x"], "inputs[0] is 'x', allowed: an object"),
        ("outputs", [], "outputs has none"),
        ("outputs.0.shape", [None, -1], "outputs[0].shape[1] is -1, allowed: whole numbers from 0"),
        ("outputs.0.shape", 8, "outputs[0].shape is 8, allowed: a list"),
        ("precision", "int8", "precision is 'int8', allowed: fp32, fp16, bf16"),
        ("max_positions", math.inf, "max_positions is inf, allowed"),
        ("plugins", {"PadfreeAttention": "2"}, "plugins.PadfreeAttention is '2', allowed"),
        ("plugins", {"\x1b[2J": 2}, r"a name in plugins is '\x1b[2J', allowed"),
        ("coverage", [], "coverage is [], allowed: an object"),
        ("coverage.excluded_ids.input_ids", ["1"], "coverage.excluded_ids.input_ids[0] is '1', allowed"),
        ("engine", None, "engine is None, allowed: an object"),
        ("engine.gpu_name", "H200\nRUN curl evil", r"engine.gpu_name is 'H200\nRUN curl evil', allowed"),
        ("engine.tensorrt", "10.6.0'; id; '", "engine.tensorrt is \"10.6.0'; id; '\", allowed"),
        ("engine.compute_capability", "9.0\n", r"engine.compute_capability is '9.0\n', allowed"),
        ("engine.plan_sha256", "0" * 63, "engine.plan_sha256 is '000"),
        ("engine.plan_bytes", -1, "engine.plan_bytes is -1, allowed"),
        ("engine.profile.max_batch", 0, "engine.profile.max_batch is 0, allowed: whole numbers from 1 to 2147483647"),
        ("engine.profile.max_tokens", 3e9, "engine.profile.max_tokens is 3000000000.0, allowed"),
        ("engine.profile.min_tokens", 25, "engine.profile.min_tokens is 25, allowed: at most 24, which is max_tokens"),
    ],
)
def test_what_is_not_allowed_is_named(path: str, value: Any, words: str) -> None:
    with pytest.raises(SessionError) as caught:
        parse_metadata(with_value(path, value), "it")
    assert f"it: damaged padfree metadata: {words}" in str(caught.value) or words in str(caught.value)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("path", ["interface", "inputs", "outputs", "inputs.0.name", "engine.profile.max_batch"])
def test_what_is_missing_is_named(path: str) -> None:
    raw = with_value(path, None)
    location: Any = raw
    *steps, last = [int(step) if step.isdigit() else step for step in path.split(".")]
    for step in steps:
        location = location[step]
    del location[last]
    shown = path.replace(".0.", "[0].")
    with pytest.raises(SessionError, match=rf"damaged padfree metadata: no {shown}".replace("[", r"\[")):
        parse_metadata(raw, "it")


@pytest.mark.parametrize("text", ["[" * 100_000, '{"format": ' + "1" * 5000 + "}", '{"a": Infinity', "\udcff"])
def test_texts_that_are_no_metadata(tmp_path: Path, text: str) -> None:
    with pytest.raises(ValueError):
        decode(text)
    plan = tmp_path / "model.plan"
    plan.touch()
    (tmp_path / "model.plan.json").write_text(text, encoding="utf-8", errors="surrogateescape")
    with pytest.raises(SessionError, match=r"not JSON|cannot be read"):
        read_sidecar(plan)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
PATHS = [
    *("format", "interface", "precision", "inputs", "outputs", "max_positions", "coverage", "plugins", "engine"),
    *("inputs.0", "inputs.0.name", "inputs.0.limit", "outputs.0", "outputs.0.shape", "coverage.excluded_ids"),
    *("coverage.excluded_ids.input_ids", "engine.profile", "engine.tensorrt", "engine.plugin_layers"),
]


@settings(max_examples=400)
@given(path=st.sampled_from(PATHS), value=VALUES)
def test_damage_of_any_kind_is_an_error_of_padfree_or_none(path: str, value: Any) -> None:
    raw = json.loads(json.dumps(with_value(path, value)))
    with contextlib.suppress(SessionError):
        assert isinstance(parse_metadata(raw, "it"), Metadata)


TEXT: dict[str, Any] = {
    "task": "sentence-embedding",
    "tokenizer_sha256": "0" * 64,
    "max_length": 128,
    "prompts": {"query": "find: "},
    "default_prompt": "query",
    "pooling": ["mean"],
    "normalize": True,
    "similarity": None,
    "labels": [],
}


def test_what_is_said_of_texts_is_read() -> None:
    text = parse_metadata({**VALID, "text": TEXT}, "it").text
    assert text is not None
    assert (text.task, text.max_length, text.prompts) == ("sentence-embedding", 128, {"query": "find: "})
    assert parse_metadata({**VALID, "text": text.to_dict()}, "it").text == text
    assert parse_metadata({**VALID, "text": None}, "it").text is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("task", "poetry"),
        ("tokenizer_sha256", "0" * 63),
        ("max_length", 0),
        ("prompts", ["query"]),
        ("prompts", {"query": 1}),
        ("default_prompt", "document"),
        ("pooling", "mean"),
        ("normalize", 1),
        ("labels", [1]),
    ],
)
def test_damage_of_what_is_said_of_texts_is_named(name: str, value: Any) -> None:
    with pytest.raises(SessionError, match=rf"it: damaged padfree metadata: .*text\.{name}"):
        parse_metadata({**VALID, "text": {**TEXT, name: value}}, "it")

# SPDX-License-Identifier: Apache-2.0
"""Definitions give what transformers gives: every reference, padded with random ids and packed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto
from padfree.onnx_tools.files.model import Model
from padfree.onnx_tools.files.model_file import save_model
from padfree.onnx_tools.files.weights import Storage
from padfree.onnx_tools.options import RewriteOptions
from padfree.onnx_tools.rewrite import finish, rewrite_model
from padfree.runtime import Session, SessionError

from tests.support import exports, tiny_folders

OWN = "own definition"  # what made answers of which there is no other reading
TOLERANCE = 1e-5  # relative to the largest number of an answer; sums are added up in other orders
SAME_WHATEVER = ("old_norms", "float16", "three_types", "own_names", "old_entries", "gelu_fast", "gelu_tanh",
                 "gelu_python", "swish", "classes_padding", "dynamic")  # fmt: skip
"""Parts of the names of references that differ in how weights are written, not in what is computed."""


def family(name: str) -> str:
    return name.split("_")[0]


def write(name: str, folder: Path, storage: Storage = Storage.MEMORY) -> Model:
    return tiny_folders.define(name, folder).model(storage)


def run_padded(model: ModelProto, padding: int | None = None) -> dict[str, Any]:
    session = exports.session(model)
    feeds = tiny_folders.pad(padding)
    outputs = [item.name for item in session.get_outputs()]
    return dict(zip(outputs, session.run(outputs, {item.name: feeds[item.name] for item in session.get_inputs()}),
                    strict=True))  # fmt: skip


def assert_same(actual: Any, wanted: Any) -> None:
    np.testing.assert_allclose(actual, wanted, rtol=0, atol=TOLERANCE * max(1.0, float(np.abs(wanted).max())))


@pytest.mark.parametrize("name", tiny_folders.names())
def test_padded_graph(name: str, tmp_path: Path) -> None:
    reference, defined = tiny_folders.read(name), tiny_folders.define(name, tmp_path)
    assert defined.is_own == (reference.source == OWN)
    actual = run_padded(defined.model(Storage.MEMORY).whole(), tiny_folders.padding_of(reference))
    assert set(actual) == set(reference.outputs)
    for output, rows in reference.outputs.items():
        for number, (ids, wanted) in enumerate(zip(tiny_folders.REQUESTS, rows, strict=True)):
            is_per_token = wanted.shape[:1] == (len(ids),) and actual[output].shape[1] == len(tiny_folders.REQUESTS[0])
            result = actual[output][number]
            assert_same(result[: len(ids)] if is_per_token else result, wanted)


@pytest.mark.parametrize("name", tiny_folders.names())
def test_packed_answers_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    reference = tiny_folders.read(name)
    original = write(name, tmp_path / "model")
    by_id = tiny_folders.padding_of(reference) is not None  # a part that stays padded looks for padding ids
    rewritten = rewrite_model(original, RewriteOptions(strict=not by_id, verify=by_id))
    save_model(finish(rewritten.model, rewritten.precision), tmp_path / "packed.onnx")
    request: Any = [list(ids) for ids in tiny_folders.REQUESTS]
    with Session(tmp_path / "packed.onnx") as session:
        if reference.takes_types:
            request = {"input_ids": request, "token_type_ids": [list(kinds) for kinds in tiny_folders.TYPES]}
        actual = session.run(request)
    assert set(actual) == set(reference.outputs)
    for output, rows in reference.outputs.items():
        for answer, wanted in zip(actual[output], rows, strict=True):
            assert_same(answer, wanted)


@pytest.mark.parametrize(("name", "longest"), [("llama_longrope", 12), ("llama_dynamic", 40)])
def test_texts_for_which_frequencies_would_be_others_are_refused(name: str, longest: int, tmp_path: Path) -> None:
    """Beyond that length, transformers' frequencies depend on the longest text of a batch."""
    original = write(name, tmp_path / "model")
    rewritten = rewrite_model(original, RewriteOptions(strict=True, verify=False))
    save_model(finish(rewritten.model, rewritten.precision), tmp_path / "packed.onnx")
    with Session(tmp_path / "packed.onnx") as session:
        session.run([[1] * longest])
        with pytest.raises(SessionError, match=f"the model has {longest} positions"):
            session.run([[1] * (longest + 1)])


@pytest.mark.parametrize("name", ["bert", "bert_float16", "bert_bfloat16"])
def test_weights_are_the_same_where_files_are_mapped(name: str, tmp_path: Path) -> None:
    read, mapped = (run_padded(write(name, tmp_path, storage).whole()) for storage in (Storage.MEMORY, Storage.MAP))
    for output in read:
        np.testing.assert_array_equal(read[output], mapped[output])


@pytest.mark.parametrize(
    "name", [name for name in tiny_folders.names() if not any(part in name for part in SAME_WHATEVER)]
)
def test_every_key_matters(name: str) -> None:
    """References that differ in the value of a key have different answers."""
    mine = tiny_folders.read(name)
    for other in map(tiny_folders.read, tiny_folders.names()):
        alike = other.name != name and set(other.outputs) == set(mine.outputs) and family(other.name) == family(name)
        if not alike or any(part in other.name for part in SAME_WHATEVER):
            continue
        for output, rows in mine.outputs.items():
            theirs = other.outputs[output]
            same = [
                a.shape == b.shape and np.allclose(a, b, atol=10 * TOLERANCE) for a, b in zip(rows, theirs, strict=True)
            ]
            assert not all(same), other.name

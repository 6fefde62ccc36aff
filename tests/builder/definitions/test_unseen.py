# SPDX-License-Identifier: Apache-2.0
"""Tokens that none sees get the rows of masked slots, and all other rows stay, in every family that may have them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnxruntime as ort
import pytest
from padfree.builder.definitions.dispatch import write
from padfree.builder.definitions.errors import NotDefinedError
from padfree.builder.definitions.graph import Unseen
from padfree.builder.folders.objects import Entries
from padfree.contract.texts import FEATURES
from padfree.onnx_tools.files import Model, Storage
from padfree.onnx_tools.options import RewriteOptions
from padfree.onnx_tools.rewrite import rewrite_model

from tests.support.tiny_folders import Reference, read, write_reference

FAMILIES = ("bert", "camembert", "distilbert", "modernbert", "mpnet", "roberta", "xlm_roberta")
ROW, LONGEST = 7, 9
TEXT = (5, 17, 30, 8, 41)
TOLERANCE = 1e-6  # of rows near 1, in float32


def model_of(folder: Path, unseen: Unseen | None) -> Model:
    """The model of a folder."""
    config = folder / "config.json"
    files = [folder / "model.safetensors"]
    return write(config, Entries(config).raw, files, task=FEATURES, labels=0, unseen=unseen).model(Storage.MEMORY)


def rows(folder: Path, ids: list[int], mask: list[int], unseen: Unseen | None) -> npt.NDArray[np.float32]:
    """The rows [S, E] of one sequence."""
    session = ort.InferenceSession(model_of(folder, unseen).whole().SerializeToString())
    feeds = {"input_ids": ids, "attention_mask": mask, "token_type_ids": [0] * len(ids)}
    arrays = {item.name: np.asarray([feeds[item.name]], np.int64) for item in session.get_inputs()}
    result: npt.NDArray[np.float32] = session.run(None, arrays)[0][0]
    return result


def with_wide_windows(reference: Reference) -> Reference:
    """The model with windows through which every token sees some other."""
    config = {**reference.config, **({"local_attention": 16} if "local_attention" in reference.config else {})}
    return replace(reference, config=config)


@pytest.mark.parametrize("name", FAMILIES)
def test_rows_are_those_of_masked_slots(name: str, tmp_path: Path) -> None:
    reference = with_wide_windows(read(name))
    folder, more = write_reference(reference, tmp_path / "model"), LONGEST - len(TEXT)
    number = reference.config["vocab_size"]
    actual = rows(folder, [*TEXT, *[number] * more], [1] * LONGEST, Unseen(ROW, LONGEST))
    wanted = rows(folder, [*TEXT, *[ROW] * more], [1] * len(TEXT) + [0] * more, None)
    np.testing.assert_allclose(actual, wanted, atol=TOLERANCE)
    alone = rows(folder, list(TEXT), [1] * len(TEXT), None)
    np.testing.assert_allclose(actual[: len(TEXT)], alone, atol=TOLERANCE)
    assert rewrite_model(model_of(folder, Unseen(ROW, LONGEST)), RewriteOptions(verify=False)).report.complete


def test_other_families_are_refused(tmp_path: Path) -> None:
    folder = write_reference(read("deberta_v3"), tmp_path / "model")
    with pytest.raises(NotDefinedError, match="has no definition for query expansion that is not attended to"):
        rows(folder, [*TEXT], [1] * len(TEXT), Unseen(ROW, LONGEST))

# SPDX-License-Identifier: Apache-2.0
"""Models that collect class markers and the first tokens of words, as GLiNER's token level does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from onnx import ModelProto, TensorProto
from padfree.builder.cli import main
from padfree.builder.engine_check.batches import make_batches
from padfree.contract.metadata import Profile, parse_metadata
from padfree.onnx_tools import RewriteError, rewrite, save_model
from padfree.onnx_tools.analysis.special_ids import IdRule, SpecialIds, special_ids
from padfree.onnx_tools.files.model import Model
from padfree.onnx_tools.importing.importing import import_model
from padfree.runtime import Session, SessionError
from padfree.runtime.text.tasks import Choices, describe

from tests.support.encoder import HIDDEN, EncoderBuilder, one_layer
from tests.support.exports import metadata_of

Capture = pytest.CaptureFixture[str]
MARKER, TOLERANCE = 7, 1e-4


def rows_at(b: EncoderBuilder, hidden: str, found: str) -> tuple[str, str, str]:
    """Rows of hidden [B,S,E] where `found` [B,S] is true, and each one's batch index and slot."""
    positions = b.op("Transpose", b.op("NonZero", found), perm=[1, 0])
    batch, slot = (b.op("Gather", positions, b.constant(axis, np.int64), axis=1) for axis in (0, 1))
    return b.op("GatherND", hidden, positions), batch, slot


def scatter_rows(b: EncoderBuilder, hidden: str, rows: str, batch: str, index: str, count: str) -> str:
    """Rows of tokens, each at an index in its sequence, [B, count, E], with zeros elsewhere."""
    ends = (b.axes(0), b.axes(1), b.axes(2), b.axes(3))
    sizes = b.op("Shape", hidden)
    first, width = b.op("Slice", sizes, ends[0], ends[1]), b.op("Slice", sizes, ends[2], ends[3])
    shape = b.op("Concat", first, b.op("Reshape", count, b.axes(1)), width, axis=0)
    pairs = b.op("Concat", *(b.op("Unsqueeze", item, b.axes(1)) for item in (batch, index)), axis=1)
    return b.op("ScatterND", b.op("ConstantOfShape", shape), pairs, rows)


def gliner(*, equal: bool = False) -> ModelProto:
    """Scores [B, words, classes]; with `equal`, all sequences must have the same number of classes."""
    b, hidden = one_layer()
    kept = b.op("Greater", "attention_mask", b.constant(0, np.int64))
    is_marker = b.op("And", b.op("Equal", "input_ids", b.constant(MARKER, np.int64)), kept)
    markers, batch, _ = rows_at(b, hidden, is_marker)
    if equal:
        first = b.op("Slice", b.op("Shape", hidden), b.axes(0), b.axes(1))
        shape = b.op("Concat", first, b.axes(-1, HIDDEN), axis=0)
        classes = b.op("Reshape", markers, shape)
    else:
        numbers = b.op("Cast", is_marker, to=TensorProto.INT64)
        counts = b.op("ReduceSum", numbers, b.axes(1), keepdims=0)
        before = b.op("Sub", b.op("CumSum", numbers, b.constant(1, np.int64)), b.constant(1, np.int64))
        index = b.op("GatherND", before, b.op("Transpose", b.op("NonZero", is_marker), perm=[1, 0]))
        classes = scatter_rows(b, hidden, markers, batch, index, b.op("ReduceMax", counts, keepdims=0))
    is_word = b.op("Greater", "words_mask", b.constant(0, np.int64))
    words, batch, _ = rows_at(b, hidden, is_word)
    number = b.op("GatherND", "words_mask", b.op("Transpose", b.op("NonZero", is_word), perm=[1, 0]))
    index = b.op("Sub", number, b.constant(1, np.int64))
    rows = scatter_rows(b, hidden, words, batch, index, b.op("ReduceMax", "text_lengths", keepdims=0))
    b.op("MatMul", rows, b.op("Transpose", classes, perm=[0, 2, 1]), output="scores")
    model = b.model({"scores": ["batch", "words", "classes"]}, more=["words_mask", "text_lengths"])
    model.graph.input[-1].type.tensor_type.shape.dim[1].dim_param = "value"
    return model


def texts(numbers: tuple[int, ...]) -> dict[str, np.ndarray]:
    """A batch with these numbers of markers in its sequences: each a marker and its class, then words of two tokens."""
    rows = []
    for count, words in zip(numbers, (3, 1, 2), strict=True):
        rows.append(([MARKER, 9] * count + [5] + [11, 12] * words, [0] * (2 * count + 1), words))
    length = max(len(ids) for ids, _, _ in rows)
    feeds = {name: np.zeros((3, length), np.int64) for name in ("input_ids", "attention_mask", "words_mask")}
    for i, (ids, before, words) in enumerate(rows):
        numbering = np.stack([np.arange(1, words + 1), np.zeros(words, int)], 1).reshape(-1)
        feeds["input_ids"][i, : len(ids)], feeds["attention_mask"][i, : len(ids)] = ids, 1
        feeds["words_mask"][i, : len(ids)] = [*before, *numbering]
    return feeds | {"text_lengths": np.asarray([[words] for _, _, words in rows])}


def run(model: ModelProto, feeds: dict[str, np.ndarray]) -> np.ndarray:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, feeds)[0])


@pytest.mark.parametrize(("equal", "numbers"), [(False, (2, 1, 3)), (True, (2, 2, 2))])
def test_padded_models_collect_as_the_original_does(equal: bool, numbers: tuple[int, ...]) -> None:
    model = gliner(equal=equal)
    result = rewrite(model, interface="padded")
    feeds = texts(numbers)
    np.testing.assert_allclose(run(result.model, feeds), run(model, feeds), atol=TOLERANCE)
    rule = metadata_of(result)["id_rules"]["input_ids"]
    assert rule["markers" if not equal else "avoided"] == [MARKER]
    assert result.report.plugins["PadfreeAttention"] == 1


def test_numbers_that_must_be_equal_are_equal_in_samples() -> None:
    """The original fails if sequences have different numbers of markers: so do samples of that kind."""
    with pytest.raises(Exception, match=r"Reshape"):
        run(gliner(equal=True), texts((2, 1, 2)))
    rules = [IdRule(None, 0, (MARKER,), 20, markers=(MARKER,), equally=equally) for equally in (True, False)]
    mask = np.arange(9) < np.asarray([9, 2, 5])[:, None]
    ids = np.random.default_rng(0).integers(0, 20, mask.shape)
    equal, others = ((rule.at_tokens(ids, mask) == MARKER).sum(1).tolist() for rule in rules)
    assert equal == [1, 1, 1]
    assert others == [1, 1, 3]


def test_what_is_collected_is_read_off_the_graph() -> None:
    found = special_ids(import_model(Model(gliner())))
    assert found["input_ids"] == SpecialIds((MARKER,), markers=(MARKER,))
    assert found["words_mask"].numbers
    assert found["words_mask"].count == "text_lengths"
    assert "text_lengths" not in found


def test_the_packed_interface_names_the_rows_to_keep(tmp_path: Path) -> None:
    with pytest.raises(RewriteError, match=r"a size that follows from values.* --outputs \S+; or choose the padded"):
        rewrite(gliner())
    try:
        rewrite(gliner())
    except RewriteError as error:
        advised = str(error).partition("--outputs ")[2].partition(";")[0]
    save_model(gliner(), tmp_path / "model.onnx")
    command = ["optimize", str(tmp_path / "model.onnx"), "-o", str(tmp_path / "cut.onnx"), "--outputs", advised]
    assert main(command) == 0
    with Session(tmp_path / "cut.onnx") as session:
        (rows,) = session.run({"input_ids": [[MARKER, 9, 5, 11], [5, 12]]}).values()
    assert [row.shape for row in rows] == [(4, HIDDEN), (2, HIDDEN)]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0)])
def test_sequences_get_answers_of_their_own_shape(order: tuple[int, ...], tmp_path: Path) -> None:
    """As many words and classes as each has: sizes that follow from values, so every sequence runs alone."""
    padded = tmp_path / "padded.onnx"
    save_model(rewrite(gliner(), interface="padded").model, padded)
    batch = texts((2, 1, 3))
    lengths = batch["attention_mask"].sum(1)
    rows = [{name: value[i : i + 1, : lengths[i]] for name, value in batch.items()} for i in order]
    request = {name: [row[name][0] for row in rows] for name in ("input_ids", "words_mask", "text_lengths")}
    with Session(padded) as session:
        actual, metadata = session.run(request)["scores"], session.metadata
    assert [one.shape for one in actual] == [((3, 1, 2)[i], (2, 1, 3)[i]) for i in order]
    for row, one in zip(rows, actual, strict=True):
        np.testing.assert_allclose(one, run(gliner(), row)[0], atol=TOLERANCE)
    with pytest.raises(
        SessionError, match=r"^'scores' has no row per text, its size .* follows .* `padfree run` gives"
    ):
        describe(padded, metadata, Choices(output="scores"))


def test_a_batch_in_triton_needs_answers_of_one_shape(tmp_path: Path, capsys: Capture) -> None:
    pytest.importorskip("tritonclient.grpc", reason="needs tritonclient: pip install '.[triton]'")
    padded = tmp_path / "padded.onnx"
    save_model(rewrite(gliner(), interface="padded").model, padded)
    assert main(["triton", str(padded), "-o", str(tmp_path / "models"), "--name", "model"]) == 1
    assert "which take its sequences one by one" in " ".join(capsys.readouterr().err.split())


def test_lengths_of_an_axis_of_their_own_are_one_number_per_sequence() -> None:
    inputs = {item["name"]: item for item in metadata_of(rewrite(gliner(), interface="padded"))["inputs"]}
    assert inputs["text_lengths"]["role"] == "per_sequence"
    assert inputs["text_lengths"]["width"] == 1
    assert inputs["words_mask"]["role"] == "tokens"


def label_model() -> ModelProto:
    """Scores by the sum of some labels' vectors, whose number is an axis of its own: labels [batch, labels]."""
    b, hidden = one_layer()
    labels = b.op("ReduceSum", b.op("Gather", b.weight(6, HIDDEN), "labels"), b.axes(1), keepdims=0)
    first = b.op("Gather", hidden, b.constant(0, np.int64), axis=1)
    b.op("ReduceSum", b.op("Mul", labels, first), b.axes(1), keepdims=1, output="y")
    model = b.model({"y": ["batch", 1]}, more=["labels"])
    model.graph.input[-1].type.tensor_type.shape.dim[1].dim_param = "count"
    return model


def test_rows_of_several_numbers_are_fixed_as_the_note_says(tmp_path: Path) -> None:
    (note,) = (note for note in rewrite(label_model()).report.notes if "'labels'" in note)
    assert "[batch, count] is taken to hold one number per sequence" in note
    source, fixed = tmp_path / "model.onnx", tmp_path / "fixed.onnx"
    save_model(label_model(), source)
    words = note.partition("python -m ")[2].replace(" N ", " 3 ").split()
    paths = {"model.onnx": str(source), "fixed.onnx": str(fixed)}
    subprocess.run([sys.executable, "-m", *(paths.get(word, word) for word in words)], check=True, capture_output=True)
    result = rewrite(str(fixed))
    assert not any("'labels'" in note for note in result.report.notes)
    save_model(result.model, tmp_path / "packed.onnx")
    texts, labels = [[3, 4, 5], [6]], np.asarray([[1, 2, 3], [0, 5, 5]])
    with Session(tmp_path / "packed.onnx") as session:
        (scores,) = session.run({"input_ids": texts, "labels": labels}).values()
    for ids, row, score in zip(texts, labels, scores, strict=True):
        grid = np.asarray([ids])
        feeds = {"input_ids": grid, "attention_mask": np.ones_like(grid), "labels": row[None]}
        np.testing.assert_allclose(score, run(label_model(), feeds)[0], atol=TOLERANCE)


def test_types_that_broadcast_stay_values_of_tokens() -> None:
    """An input whose axis has a name of its own; it runs with one column or as many as tokens, but no other number."""
    b, hidden = one_layer()
    types = b.op("Gather", b.weight(2, HIDDEN), "token_type_ids")
    b.op("Add", hidden, types, output="y")
    model = b.model({"y": ["batch", "sequence", HIDDEN]}, more=["token_type_ids"])
    model.graph.input[-1].type.tensor_type.shape.dim[1].dim_param = "types"
    inputs = {item["name"]: item for item in metadata_of(rewrite(model))["inputs"]}
    assert inputs["token_type_ids"]["role"] == "tokens"


def test_engine_checks_and_comparisons_draw_the_same_kind_of_ids(tmp_path: Path) -> None:
    """All random batches hold markers, numbered words, and the numbers of words."""
    source, padded = tmp_path / "model.onnx", tmp_path / "padded.onnx"
    save_model(gliner(), source)
    assert main(["optimize", str(source), "-o", str(padded), "--interface", "padded"]) == 0
    metadata = parse_metadata(metadata_of(rewrite(gliner(), interface="padded")), "model", error=ValueError)
    for batch in make_batches(metadata, Profile(1, 60, 120, 4, 30), most_tokens=60):
        feeds = batch.inputs(metadata)
        check(feeds["input_ids"], feeds["words_mask"], feeds["text_lengths"], batch.mask)
    command = ["compare", str(source), str(padded), "--runners", "onnxrt-packed", "--max-seq-len", "20"]
    assert main(command) == 0


def check(ids: np.ndarray, words: np.ndarray, counts: np.ndarray, mask: np.ndarray) -> None:
    assert ((ids == MARKER) & mask).any(1).all()
    assert not words[~mask].any()
    for row, count in zip(words, counts, strict=True):
        assert row[row > 0].tolist() == list(range(1, int(count[0]) + 1))

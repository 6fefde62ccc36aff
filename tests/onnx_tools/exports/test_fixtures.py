# SPDX-License-Identifier: Apache-2.0
"""The exported test models: they compute what PyTorch computed, and nothing could be dropped from them unnoticed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper
from tokenizers import Tokenizer

from tests.fixtures import make_tokenizer

ROOT = Path(__file__).resolve().parents[3]

DEMO_DATA = ROOT / "builder" / "demo" / "data"
FILES = [DEMO_DATA / "bert_tiny.onnx", *sorted((ROOT / "tests" / "fixtures").glob("*.onnx"))]
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
BATCHES = ("ragged", "single", "full")
TOLERANCE = 2e-5  # float32 in a different order of summation, outputs between 1 and 5
fixtures = pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)


@pytest.fixture(scope="module")
def expected() -> dict[str, np.ndarray]:
    with np.load(ROOT / "tests" / "fixtures" / "expected.npz") as archive:
        return dict(archive)


def feeds_of(expected: dict[str, np.ndarray], batch: str) -> dict[str, np.ndarray]:
    return {name: expected[f"{batch}/{name}"] for name in INPUTS}


def session_of(model: onnx.ModelProto) -> ort.InferenceSession:
    return ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def valid(name: str, result: np.ndarray, mask: np.ndarray) -> np.ndarray:
    return result[mask != 0] if name == "last_hidden_state" else result


@fixtures
@pytest.mark.parametrize("batch", BATCHES)
def test_onnxruntime_agrees_with_pytorch(file: Path, batch: str, expected: dict[str, np.ndarray]) -> None:
    session = session_of(onnx.load(file))
    feeds = feeds_of(expected, batch)
    results = session.run(None, feeds)
    for output, result in zip(session.get_outputs(), results, strict=True):
        wanted = expected[f"{file.stem}/{batch}/{output.name}"]
        assert result.shape == wanted.shape
        mask = feeds["attention_mask"]
        np.testing.assert_allclose(
            valid(output.name, result, mask), valid(output.name, wanted, mask), rtol=TOLERANCE, atol=TOLERANCE
        )


@fixtures
def test_axes_are_dynamic_and_inputs_are_int64(file: Path) -> None:
    model = onnx.load(file)
    assert [item.name for item in model.graph.input] == list(INPUTS)
    for item in model.graph.input:
        assert item.type.tensor_type.elem_type == onnx.TensorProto.INT64
        assert [dim.dim_param for dim in item.type.tensor_type.shape.dim] == ["batch", "sequence"]


@fixtures
def test_every_parameter_matters(file: Path, expected: dict[str, np.ndarray]) -> None:
    """No float table is constant, and changing any one of them changes an output."""
    model = onnx.load(file)
    feeds = feeds_of(expected, "ragged")
    tables = [tensor for tensor in model.graph.initializer if tensor.data_type == onnx.TensorProto.FLOAT]
    parameters = [tensor for tensor in tables if len(tensor.dims) > 0 and np.prod(tensor.dims) > 1]
    assert len(parameters) >= 37, "5 of the embedding, 16 of each of 2 layers"
    for tensor in parameters:  # an initializer that is an input too may be overridden
        model.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    session = session_of(model)
    before = session.run(None, feeds)
    for tensor in parameters:
        values = numpy_helper.to_array(tensor)
        assert values.std() > 0.05, tensor.name
        after = session.run(None, {**feeds, tensor.name: -values})
        # A key's bias shifts all scores of a query alike: softmax removes it again, whatever its value.
        if tensor.name.endswith("key.bias"):
            continue
        assert max(float(np.abs(a - b).max()) for a, b in zip(before, after, strict=True)) > 1e-3, tensor.name


@fixtures
def test_attention_scores_spread(file: Path, expected: dict[str, np.ndarray]) -> None:
    model = onnx.load(file)
    scores = [node.input[0] for node in model.graph.node if node.op_type == "Softmax"]
    assert len(scores) == 2
    for name in scores:
        model.graph.output.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None))
    feeds = feeds_of(expected, "ragged")
    kept = feeds["attention_mask"] != 0
    pairs = np.broadcast_to((kept[:, None, :, None] & kept[:, None, None, :]), (5, 4, 31, 31))
    for values in session_of(model).run(scores, feeds):
        assert values[pairs].std() >= 3


@fixtures
def test_padded_slots_hold_ids_that_must_not_matter(file: Path, expected: dict[str, np.ndarray]) -> None:
    feeds = feeds_of(expected, "ragged")
    hidden = feeds["attention_mask"] == 0
    assert len(np.unique(feeds["input_ids"][hidden])) > 20, "padded slots are filled with random ids"
    session = session_of(onnx.load(file))
    before = session.run(None, feeds)
    changed = {**feeds, "input_ids": np.where(hidden, (feeds["input_ids"] + 7) % 256, feeds["input_ids"])}
    for output, a, b in zip(session.get_outputs(), before, session.run(None, changed), strict=True):
        mask = feeds["attention_mask"]
        np.testing.assert_allclose(valid(output.name, a, mask), valid(output.name, b, mask), rtol=1e-6, atol=1e-6)


@fixtures
def test_files_are_small_and_name_no_source_files(file: Path) -> None:
    content = file.read_bytes()
    assert len(content) < 1_500_000
    for word in (b".py", b"site-packages", b"/home", b"/root"):
        assert word not in content


def test_tokenizer_is_what_its_script_makes_and_fits_the_model() -> None:
    texts = (DEMO_DATA / "texts.txt").read_text(encoding="utf-8").splitlines()
    committed = (DEMO_DATA / "tokenizer.json").read_text(encoding="utf-8")
    assert make_tokenizer.make_tokenizer(texts).to_str(pretty=False) + "\n" == committed
    tokenizer = Tokenizer.from_str(committed)
    (words,) = [t for t in onnx.load(DEMO_DATA / "bert_tiny.onnx").graph.initializer if "word_embeddings" in t.name]
    assert tokenizer.get_vocab_size() == words.dims[0]
    encoded = tokenizer.encode_batch(texts)
    lengths = sorted(len(item.ids) for item in encoded)
    assert lengths[0] <= 5
    assert 300 < lengths[-1] <= 512
    for item in encoded:
        assert (item.tokens[0], item.tokens[-1]) == ("[CLS]", "[SEP]")
        assert "[UNK]" not in item.tokens
    pair = tokenizer.encode("the train", "the boat")
    assert pair.tokens == ["[CLS]", "the", "train", "[SEP]", "the", "boat", "[SEP]"]
    assert pair.type_ids == [0, 0, 0, 0, 1, 1, 1]

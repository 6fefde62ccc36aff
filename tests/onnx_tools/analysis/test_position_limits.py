# SPDX-License-Identifier: Apache-2.0
"""The longest sequence that a model takes: what is recorded compared with what the original does in onnxruntime."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper
from padfree.onnx_tools import RewriteError, load_model, rewrite
from padfree.onnx_tools.analysis import position_limits
from padfree.onnx_tools.analysis.computed_numbers import ComputedNumbers
from padfree.onnx_tools.analysis.limits import limit_of
from padfree.onnx_tools.analysis.position_limits import longest_sequence
from padfree.onnx_tools.analysis.symbolic import analyse
from padfree.onnx_tools.files.model import Model
from padfree.onnx_tools.importing.fixed_axes import fixed_sizes
from padfree.onnx_tools.importing.importing import import_model
from padfree.onnx_tools.importing.inputs import token_inputs_of

from tests.onnx_tools.agreement import INTERFACES
from tests.support import exports, families
from tests.support.encoder import HIDDEN, TOKENS, VOCABULARY, EncoderBuilder, with_output
from tests.support.exports import metadata_of, session
from tests.support.messages import widen
from tests.support.rewritings import Rewritings

FAR = 1000  # tokens: no table in the fixtures has this many rows
ROWS = 24
# Forms of BERT differ only in masks and activations, which have nothing to do with positions.
FILES = [case for case in (*families.all_cases(), *families.optimum_cases()) if case.static or not case.activation]
EXAMPLES = sorted(Path(exports.FOLDER).parent.glob("*.onnx"))


Recorded = tuple[int | None, dict[str, int | None]]


def record(model: ModelProto) -> Recorded:
    """The longest sequence, and how many values each input may take."""
    graph = import_model(Model(model))
    limits = [longest_sequence(graph, analyse(graph)), fixed_sizes(model, token_inputs_of(model)).sequence]
    longest = min((item for item in limits if item is not None), default=None)
    return longest, {str(tensor.name): limit_of(graph, tensor.name) for tensor in graph.inputs}


def feeds_of(
    model: ModelProto, kinds: Mapping[str, str], limits: Mapping[str, int | None], length: int
) -> dict[str, np.ndarray]:
    """One sequence without padding, of ids that no model takes for padding; the last one ends the text (BART)."""
    ids = np.full(length, 5)
    ids[-1] = 2
    feeds = {}
    weights = {tensor.name for tensor in model.graph.initializer}
    for item in model.graph.input:
        if item.name in weights:
            continue
        kind = kinds.get(item.name, "ids")
        values = {"ids": ids, "mask": np.ones(length), "seg": np.ones(length), "types": np.zeros(length)}.get(kind)
        if values is None:  # positions: a table limits their values, not the length
            values = np.arange(length) % (limits[item.name] or length)
        dtype = helper.tensor_dtype_to_np_dtype(item.type.tensor_type.elem_type)
        batch, _, *widths = (dim.dim_value for dim in item.type.tensor_type.shape.dim)
        values = values.astype(dtype).reshape(length, *[1] * len(widths))
        feeds[item.name] = np.broadcast_to(values, (batch or 1, length, *widths)).copy()
    return feeds


def runs(
    model: ModelProto, kinds: Mapping[str, str], limits: Mapping[str, int | None], lengths: list[int]
) -> list[bool]:
    nameless = ModelProto.FromString(model.SerializeToString())
    for node in nameless.graph.node:  # onnxruntime rejects equal names
        node.name = ""
    running = session(nameless)

    def one(length: int) -> bool:
        try:
            running.run(None, feeds_of(model, kinds, limits, length))
        except Exception:  # onnxruntime's exceptions have no base class of their own
            return False
        return True

    return [one(length) for length in lengths]


def assert_true(
    model: ModelProto, kinds: Mapping[str, str], actual: Recorded | None = None, beyond: int = 1
) -> int | None:
    """The original takes sequences up to the recorded (or `actual`) length, and none `beyond` tokens longer."""
    longest, limits = actual or record(model)
    if longest is None:
        assert runs(model, kinds, limits, [FAR]) == [True]
    else:
        assert runs(model, kinds, limits, [longest, longest + beyond]) == [True, False]
    return longest


@pytest.mark.parametrize("case", FILES, ids=lambda case: f"{case.name}_{case.exporter}")
def test_families(case: families.Case, rewritings: Rewritings) -> None:
    model = widen(load_model(case.path)) if case.level else load_model(case.path)
    names = [item.name for item in model.graph.input]
    kinds = {name: "mask" if "mask" in name else "types" if "type" in name else "ids" for name in names}
    if case.name == "deberta_v2_static_one_dynamo":
        with pytest.raises(RewriteError, match="what it means for other sizes is not certain"):
            rewritings.of_case(case)
        return
    metadata = metadata_of(rewritings.of_case(case))
    limits = {item["name"]: item["limit"] for item in metadata["inputs"]}
    longest = assert_true(model, kinds, (metadata["max_positions"], limits))
    endless = case.family in ("deberta_v2", "deberta_v3", "modernbert", "nomic_bert", "t5")
    assert (longest is None) == (endless and not case.static)


# One token more gets a single bias of the buffer, which is broadcast to all keys; two more get two, which do not fit.
STRETCHED = ("mpt_torchscript",)
PLAIN_KINDS = {"ids", "mask", "types", "seg"}  # of inputs whose values no limit changes


@pytest.mark.parametrize("name", exports.names())
def test_exports(name: str, rewritings: Rewritings) -> None:
    model = exports.load(name)
    kinds = {item.name: item.kind for item in exports.inputs_of(name)}
    try:
        metadata = metadata_of(rewritings.of_export(name, "packed"))
        limits = {item["name"]: item["limit"] for item in metadata["inputs"]}
        actual = (metadata["max_positions"], limits) if {*kinds.values()} <= PLAIN_KINDS else None
    except RewriteError:
        actual = None
    try:
        assert_true(model, kinds, actual, beyond=2 if name in STRETCHED else 1)
    except RewriteError as error:
        pytest.skip(f"refused: {error}")


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_examples(file: Path) -> None:
    kinds = {"input_ids": "ids", "attention_mask": "mask", "token_type_ids": "types"}
    assert assert_true(load_model(file), kinds) is not None


def steps(b: EncoderBuilder) -> str:
    """0, 1, ... as int64 [S]."""
    length = b.op("Squeeze", b.op("Slice", b.op("Shape", "input_ids"), b.axes(1), b.axes(2)))
    return b.op("Range", b.constant(0, np.int64), length, b.constant(1, np.int64))


def length_of(b: EncoderBuilder, tensor: str = "input_ids") -> str:
    """S as int64 [1]."""
    return b.op("Slice", b.op("Shape", tensor), b.axes(1), b.axes(2), b.axes(0))


def rows(b: EncoderBuilder, positions: str, count: int = ROWS) -> str:
    return b.op("Gather", b.weight(count, HIDDEN), positions)


def shift(b: EncoderBuilder) -> str:
    return rows(b, b.op("Add", steps(b), b.constant(2, np.int64)))


def shifted_late(b: EncoderBuilder) -> str:
    """The offset is added after an Expand to [B,S]."""
    batch = b.op("Expand", b.op("Unsqueeze", steps(b), b.axes(0)), b.op("Shape", "input_ids"))
    return rows(b, b.op("Add", batch, b.constant([2], np.int64)))


def slice_rows(b: EncoderBuilder) -> str:
    return b.op("Slice", b.weight(1, ROWS, HIDDEN), b.axes(0), length_of(b), b.axes(1))


def sliced_from_two(b: EncoderBuilder) -> str:
    end = b.op("Add", length_of(b), b.axes(2))
    return b.op("Slice", b.weight(1, ROWS, HIDDEN), b.axes(2), end, b.axes(1))


def sliced_from_the_end(b: EncoderBuilder) -> str:
    return b.op("Slice", b.weight(1, ROWS, HIDDEN), b.op("Neg", length_of(b)), b.axes(1 << 60), b.axes(1))


def sliced_numbers(b: EncoderBuilder) -> str:
    numbers = b.op("Slice", b.constant([range(ROWS + 9)], np.int64), b.axes(0), length_of(b), b.axes(1))
    return rows(b, numbers)


def buffer_is_shorter(b: EncoderBuilder) -> str:
    numbers = b.op("Slice", b.constant([range(ROWS)], np.int64), b.axes(0), length_of(b), b.axes(1))
    return rows(b, numbers, ROWS + 9)


def counted_ids(b: EncoderBuilder) -> str:
    """RoBERTa: cumsum(ids != 1) * (ids != 1) + 1."""
    kept = b.op("Cast", b.op("Not", b.op("Equal", "input_ids", b.constant(1, np.int64))), to=TensorProto.INT64)
    positions = b.op("Mul", b.op("CumSum", kept, b.constant(1, np.int64)), kept)
    return rows(b, b.op("Add", positions, b.constant(1, np.int64)))


def counted_mask(b: EncoderBuilder) -> str:
    """OPT: cumsum(mask) * mask - 1 + 2."""
    positions = b.op("Mul", b.op("CumSum", "attention_mask", b.constant(1, np.int64)), "attention_mask")
    return rows(b, b.op("Add", b.op("Sub", positions, b.constant(1, np.int64)), b.constant(2, np.int64)))


def counted_inverted_mask(b: EncoderBuilder) -> str:
    """The same with a mask that is 0 for kept tokens."""
    kept = b.op("Sub", b.constant(1, np.int64), "attention_mask")
    return rows(b, b.op("Mul", b.op("CumSum", kept, b.constant(1, np.int64)), kept))


def halve(b: EncoderBuilder) -> str:
    return rows(b, b.op("Div", steps(b), b.constant(2, np.int64)))


def clip_steps(b: EncoderBuilder) -> str:
    return rows(b, b.op("Min", steps(b), b.constant(ROWS - 1, np.int64)))


def clipped_too_far(b: EncoderBuilder) -> str:
    return rows(b, b.op("Min", steps(b), b.constant(ROWS + 3, np.int64)))


def through_floats(b: EncoderBuilder) -> str:
    number = b.op("Add", b.op("Cast", steps(b), to=TensorProto.FLOAT), b.constant(1.0))
    return rows(b, b.op("Cast", number, to=TensorProto.INT64))


def square_steps(b: EncoderBuilder) -> str:
    """Numbers that grow with the square of the length."""
    return rows(b, b.op("Mul", steps(b), steps(b)), 100)


def buffered_types(b: EncoderBuilder) -> str:
    """A buffer of zeros, one for every position, as token types (transformers since 4.48)."""
    sizes = b.op("Concat", b.op("Slice", b.op("Shape", "input_ids"), b.axes(0), b.axes(1)), b.axes(ROWS), axis=0)
    buffer = b.op("Expand", b.constant(np.zeros((1, ROWS)), np.int64), sizes)
    batch = b.op("Expand", b.op("Unsqueeze", steps(b), b.axes(0)), b.op("Shape", "input_ids"))
    return rows(b, b.op("GatherElements", buffer, batch, axis=1), 2)


def picked_by_nd(b: EncoderBuilder) -> str:
    return b.op("GatherND", b.weight(ROWS, HIDDEN), b.op("Unsqueeze", steps(b), b.axes(1)))


def rotate(b: EncoderBuilder) -> str:
    """cos and sin caches [N,E], one sliced, one looked up."""
    cosine = b.op("Slice", b.weight(ROWS, HIDDEN), b.axes(0), length_of(b), b.axes(0))
    return b.op("Mul", cosine, rows(b, steps(b), ROWS + 5))


def whole_table(b: EncoderBuilder) -> str:
    """No slice at all: the axis is declared dynamic, but the model takes only one length."""
    return b.weight(1, ROWS, HIDDEN)


Form = Callable[[EncoderBuilder], str]
FORMS: Mapping[Form, int | None] = {
    shift: ROWS - 2, shifted_late: ROWS - 2, slice_rows: ROWS, sliced_from_two: ROWS - 2, sliced_from_the_end: ROWS,
    sliced_numbers: ROWS, buffer_is_shorter: ROWS, counted_ids: ROWS - 2, counted_mask: ROWS - 2, halve: 2 * ROWS,
    clip_steps: None, clipped_too_far: ROWS, through_floats: ROWS - 1, square_steps: 10, buffered_types: ROWS,
    picked_by_nd: ROWS, rotate: ROWS, whole_table: ROWS,
}  # fmt: skip


def form(positions: Form) -> ModelProto:
    builder = EncoderBuilder()
    words = builder.op("Gather", builder.weight(VOCABULARY, HIDDEN), "input_ids")
    x = builder.norm(builder.op("Add", words, positions(builder)))
    return with_output(builder.layer(x, builder.padding_mask()), builder, TOKENS)


KINDS = {"input_ids": "ids", "attention_mask": "mask"}


@pytest.mark.parametrize("places", FORMS, ids=lambda item: item.__name__)
def test_tables(places: Form) -> None:
    model = form(places)
    assert assert_true(model, KINDS) == FORMS[places]
    if places not in (whole_table, picked_by_nd):  # the former takes only one length, the latter has an unknown shape
        for interface in INTERFACES:
            is_right = interface == "padded" or places is not sliced_from_the_end  # the rows change with S
            result = rewrite(model, interface=interface, verify=is_right)
            assert metadata_of(result)["max_positions"] == FORMS[places]


def test_positions_counted_by_an_inverted_mask() -> None:
    model = form(counted_inverted_mask)
    assert assert_true(model, {**KINDS, "attention_mask": "types"}) == ROWS - 1


def counted_down(b: EncoderBuilder) -> str:
    """After the last row comes the first one again: no error, but other numbers than at shorter lengths."""
    return rows(b, b.op("Sub", b.constant(ROWS - 1, np.int64), steps(b)))


def one_hot(b: EncoderBuilder) -> str:
    """After the last row come rows of zeros."""
    hot = b.op("OneHot", steps(b), b.constant(ROWS, np.int64), b.constant([0, 1]))
    return b.op("MatMul", hot, b.weight(ROWS, HIDDEN))


@pytest.mark.parametrize("places", [counted_down, one_hot], ids=lambda item: item.__name__)
def test_rows_that_come_again(places: Form) -> None:
    assert record(form(places))[0] == ROWS


def attention_bias(bias: Callable[[EncoderBuilder], str]) -> ModelProto:
    builder = EncoderBuilder()
    words = builder.norm(builder.op("Gather", builder.weight(VOCABULARY, HIDDEN), "input_ids"))
    mask = builder.op("Add", builder.padding_mask(), bias(builder))
    return with_output(builder.layer(words, mask), builder, TOKENS)


def distances(b: EncoderBuilder) -> str:
    """Key position minus query position, [S,S]."""
    return b.op("Sub", b.op("Unsqueeze", steps(b), b.axes(0)), b.op("Unsqueeze", steps(b), b.axes(1)))


def heads_first(b: EncoderBuilder, positions: str, count: int) -> str:
    return b.op("Transpose", b.op("Gather", b.weight(count, 2), positions), perm=[2, 0, 1])


def causal_buffer(b: EncoderBuilder) -> str:
    buffer = b.constant(np.triu(np.full((1, 1, ROWS, ROWS), -10000.0), 1))
    once = b.op("Slice", buffer, b.axes(0), length_of(b), b.axes(2))
    return b.op("Slice", once, b.axes(0), length_of(b), b.axes(3))


def both_axes_at_once(b: EncoderBuilder) -> str:
    ends = b.op("Concat", length_of(b), length_of(b, "attention_mask"), axis=0)
    buffer = b.constant(np.triu(np.full((1, 1, ROWS + 3, ROWS), -10000.0), 1))
    return b.op("Slice", buffer, b.axes(0, 0), ends, b.axes(2, 3))


def by_distance(b: EncoderBuilder) -> str:
    """BERT's relative keys: one of 2 N - 1 rows, at distance + N - 1."""
    return heads_first(b, b.op("Add", distances(b), b.constant(ROWS - 1, np.int64)), 2 * ROWS - 1)


def by_clipped_distance(b: EncoderBuilder) -> str:
    """Shaw: distances beyond 8 count as 8."""
    near = b.op("Clip", distances(b), b.constant(-8, np.int64), b.constant(8, np.int64))
    return heads_first(b, b.op("Add", near, b.constant(8, np.int64)), 17)


def by_bucket(b: EncoderBuilder) -> str:
    """T5: near distances one by one, far ones by their logarithm, the last bucket unbounded."""
    near = b.op("Abs", distances(b))
    far = b.op("Log", b.op("Max", b.op("Cast", near, to=TensorProto.FLOAT), b.constant(1.0)))
    bucket = b.op("Cast", b.op("Mul", far, b.constant(3.0)), to=TensorProto.INT64)
    bucket = b.op("Min", bucket, b.constant(15, np.int64))
    positions = b.op("Where", b.op("Less", near, b.constant(8, np.int64)), near, bucket)
    return heads_first(b, positions, 16)


def far_distances(b: EncoderBuilder) -> str:
    """A formula that no rule recognises, with more rows than are tried."""
    near = b.op("Abs", distances(b))
    return heads_first(b, near, 3000)


BIASES: Mapping[Form, int | None] = {
    causal_buffer: ROWS, both_axes_at_once: ROWS, by_distance: ROWS, by_clipped_distance: None, by_bucket: None,
    far_distances: 3000,
}  # fmt: skip


@pytest.mark.parametrize("bias", BIASES, ids=lambda item: item.__name__)
def test_biases(bias: Form) -> None:
    model = attention_bias(bias)
    if bias is far_distances:
        assert record(model)[0] == 3000
    else:
        assert assert_true(model, KINDS) == BIASES[bias]


def test_what_every_layer_computes_again_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    def count(_: object, numbers: ComputedNumbers) -> int | None:
        tried.append(numbers.key)
        return None

    monkeypatch.setattr(position_limits, "_by_trying", count)
    model = attention_bias(
        lambda b: b.op("Add", by_clipped_distance(b), b.op("Add", by_bucket(b), by_clipped_distance(b)))
    )
    assert record(model)[0] is None
    assert len(tried) == len(set(tried)) == 2


def test_ids_limit_values_and_not_lengths() -> None:
    builder = EncoderBuilder()
    words = builder.norm(builder.op("Gather", builder.weight(VOCABULARY, HIDDEN), "input_ids"))
    model = with_output(builder.layer(words, builder.padding_mask()), builder, TOKENS)
    assert record(model) == (None, {"input_ids": VOCABULARY, "attention_mask": None})

# SPDX-License-Identifier: Apache-2.0
"""Session on rewritten .onnx files: packing, splitting, order, and what it refuses."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from padfree.onnx_tools import rewrite, save_model
from padfree.runtime import Session, SessionError
from padfree.runtime.batching import Budget
from padfree.runtime.request import read_request

from tests.support.encoder import HIDDEN, TOKENS, one_layer, with_output

ModelWriter = Callable[..., Path]


@pytest.fixture
def packed(packed_model: ModelWriter) -> Any:
    with Session(packed_model()) as session:
        yield session


@pytest.fixture
def padded(padded_model: ModelWriter) -> Any:
    with Session(padded_model()) as session:
        yield session


def test_results_come_back_a_sequence_in_order(packed: Session) -> None:
    results = packed.run({"input_ids": [[5, 6, 7], [8], [9, 10]], "token_type_ids": [[0, 1, 1], [0], [1, 0]]})
    assert [row.tolist() for row in results["hidden"]] == [[[5, 0], [6, 1], [7, 1]], [[8, 0]], [[9, 1], [10, 0]]]
    assert [row.tolist() for row in results["lengths"]] == [[3], [1], [2]]


def test_bare_list_means_ids_and_missing_types_are_zeros(packed: Session) -> None:
    results = packed.run([np.array([3, 4], dtype=np.int64), np.array([5], dtype=np.uint8)])
    assert [row.tolist() for row in results["hidden"]] == [[[3, 0], [4, 0]], [[5, 0]]]


@pytest.mark.parametrize("batch", [[[], [4], []], [[], []]])
def test_empty_sequences_give_empty_results(packed: Session, batch: list[list[int]]) -> None:
    results = packed.run(batch)
    assert [row.shape for row in results["hidden"]] == [(len(ids), 2) for ids in batch]
    assert [row.tolist() for row in results["lengths"]] == [[len(ids)] for ids in batch]


def test_no_sequences_give_no_results(packed: Session) -> None:
    assert packed.run([]) == {"hidden": [], "lengths": []}


def test_padded_interface_pads_and_cuts(padded: Session) -> None:
    results = padded.run([[5, 6, 7], [], [9]])
    assert [row.tolist() for row in results["hidden"]] == [[[1005], [1006], [1007]], [], [[1009]]]
    assert [row.tolist() for row in results["kept"]] == [[3], [0], [1]]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40, deadline=None)
@given(lengths=st.lists(st.integers(0, 16), max_size=12), budget=st.integers(1, 40))
def test_large_requests_are_split_and_joined(packed: Session, padded: Session, lengths: list[int], budget: int) -> None:
    values = np.arange(sum(lengths)) % 100
    rows = np.split(values, np.cumsum(lengths)[:-1]) if lengths else []
    with pytest.MonkeyPatch.context() as patch:
        for session in (packed, padded):
            patch.setattr(session, "_budget", Budget(budget, 3, session.metadata.interface == "padded"))
        flat = packed.run(rows)["hidden"]
        grid = padded.run(rows)["hidden"]
    assert [row[:, 0].tolist() for row in flat] == [row.tolist() for row in rows]
    assert [(row[:, 0] - 1000).tolist() for row in grid] == [row.tolist() for row in rows]


def test_run_packed_gives_filler_rows_too(packed: Session) -> None:
    results = packed.run_packed(np.array([1, 2, 3, 0, 0], dtype=np.int32), [2, 0, 1], filler_tokens=2)
    assert results["hidden"].shape == (5, 2)
    assert results["lengths"].tolist() == [[2], [0], [1]]


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"input_ids": [[1, 100]]}, "'input_ids' value 100 at sequence 0, position 1: allowed 0..99"),
        ({"input_ids": [[1], [2, -3]]}, "'input_ids' value -3 at sequence 1, position 1: allowed 0..99"),
        ({"input_ids": [[1], [2]], "token_type_ids": [[0], [2]]}, "'token_type_ids' value 2 at sequence 1, position 0"),
        ({"input_ids": [[1, 2]], "token_type_ids": [[0]]}, "sequence 0: 1 values, 'input_ids' has 2"),
        ({"input_ids": [[1, 2]], "token_type_ids": []}, "'token_type_ids' has 0 sequences, 'input_ids' has 1"),
        ({"input_ids": [[1] * 17]}, "sequence 0 has 17 tokens, the model has 16 positions; truncate it to 16"),
        ({"input_ids": [[1.5]]}, "type float64, allowed: integers"),
        ({"input_ids": [[True]]}, "type bool, allowed: integers"),
        ({"input_ids": [[[1], [2]]]}, "shape [2, 1], allowed: one dimension"),
        ({"input_ids": [3]}, "shape [], allowed: one dimension"),
        ({"input_ids": [[1, [2]]]}, "not a flat list of integers"),
        ({"input_ids": [[2**40]]}, "holds 1099511627776, allowed: 32-bit integers"),
        ({"input_ids": np.array([1, 2])}, "use run_packed"),
        ({"input_ids": "text"}, "'input_ids' is a str"),
        ({"ids": [[1]]}, "unknown input 'ids', the model's token inputs are input_ids, token_type_ids"),
        ({"token_type_ids": [[0]]}, "input 'input_ids' is missing"),
    ],
)
def test_refused_requests(packed: Session, request_: Any, message: str) -> None:
    with pytest.raises(SessionError) as caught:
        packed.run(request_)
    assert message in str(caught.value)


def test_padded_model_explains_that_masks_follow_from_lengths(padded: Session) -> None:
    with pytest.raises(SessionError, match="masks and lengths follow from the lengths"):
        padded.run({"input_ids": [[1]], "attention_mask": [[1]]})


@pytest.mark.parametrize(
    ("ids", "seq_lens", "filler", "message"),
    [
        ([1, 2, 3], [2, -1, 2], 0, "seq_lens[1] is -1, allowed: 0 or more"),
        ([1, 2, 3], [2, 2], 0, "seq_lens add up to 4, but 'input_ids' has 3 tokens"),
        ([1, 2, 3], [1, 1], 0, "seq_lens add up to 2, but 'input_ids' has 3 tokens"),
        ([1, 2, 3], [3], -1, "filler_tokens is -1, allowed: 0 or more"),
        ([1, 2, 3], [[3]], 0, "'seq_lens' has shape [1, 1], allowed: one dimension"),
        ([1, 2, 3], [3.0], 0, "'seq_lens' has type float64, allowed: integers"),
        ([1, 2, 200], [2], 1, "'input_ids' value 200 at filler token 2: allowed 0..99"),
        ([1] * 17, [17], 0, "sequence 0 has 17 tokens, the model has 16 positions"),
        ([], [], 0, "seq_lens is empty"),
    ],
)
def test_refused_packed_requests(packed: Session, ids: Any, seq_lens: Any, filler: int, message: str) -> None:
    with pytest.raises(SessionError) as caught:
        packed.run_packed(ids, seq_lens, filler_tokens=filler)
    assert message in str(caught.value)


def test_packed_arrays_of_other_lengths_are_refused(packed: Session) -> None:
    with pytest.raises(SessionError, match="'token_type_ids' has 1 tokens, 'input_ids' has 2"):
        packed.run_packed({"input_ids": [1, 2], "token_type_ids": [0]}, [2])


def test_run_packed_needs_a_packed_model(padded: Session) -> None:
    with pytest.raises(SessionError, match="needs a packed model"):
        padded.run_packed([1], [1])


def test_a_closed_session_says_so(packed: Session) -> None:
    packed.close()
    packed.close()
    with pytest.raises(SessionError, match="the session is closed"):
        packed.run([[1]])


def test_forgotten_sessions_free_what_they_hold(packed_model: ModelWriter) -> None:
    session = Session(packed_model())
    backend, feeds = session.backend, session.feeds(read_request([[1]], session.metadata))
    assert backend.run(feeds)["hidden"].tolist() == [[1, 0]]
    del session
    gc.collect()
    with pytest.raises(SessionError, match="the session is closed"):
        backend.run(feeds)


def test_onnx_sessions_import_neither_tensorrt_nor_cuda(packed_model: ModelWriter) -> None:
    code = (
        "import sys; from padfree.runtime import Session; Session(sys.argv[1]).run([[1, 2]]); "
        "assert not {'tensorrt', 'cuda', 'padfree.onnx_tools', 'padfree.builder'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, str(packed_model())], check=True)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SessionError, match=r"nothing\.onnx: no such file; make one with: padfree optimize"):
        Session(tmp_path / "nothing.onnx")


@pytest.mark.parametrize("name", ["model.onnx", "model.plan"])
def test_a_pipe_is_no_model(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(SessionError, match=f"{name}: is a pipe; give the path of a file"):
        Session(tmp_path / name)


def test_a_file_that_is_not_onnx_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"this is no protobuf")
    with pytest.raises(SessionError, match="onnxruntime cannot load it"):
        Session(path)


def test_a_model_that_was_not_rewritten_is_refused(packed_model: ModelWriter) -> None:
    import onnx

    path = packed_model()
    model = onnx.load(str(path))
    del model.metadata_props[:]
    onnx.save_model(model, str(path))
    with pytest.raises(SessionError, match=r"holds no padfree metadata.*padfree optimize"):
        Session(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": 2}, "metadata format 2, this version reads format 1"),
        ({"interface": "sparse"}, "interface is 'sparse', allowed: packed, padded"),
        ({"inputs": [{"name": "x"}]}, "damaged padfree metadata: no inputs[0].role"),
        ({"inputs": []}, "needs an input of role 'tokens'"),
        (
            {"outputs": [{"name": "y", "layout": "odd", "dtype": "float32"}]},
            "outputs[0].layout is 'odd', allowed: packed, per_sequence, padded",
        ),
    ],
)
def test_damaged_metadata_is_refused(packed_model: ModelWriter, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SessionError) as caught:
        Session(packed_model(**changes))
    assert message in str(caught.value)


@pytest.mark.parametrize("interface", ["packed", "padded"])
def test_outputs_of_bfloat16_are_float32(interface: str, tmp_path: Path) -> None:
    """Files that were exported in bfloat16 keep the types of their outputs, and NumPy has no bfloat16."""
    builder, hidden = one_layer()
    builder.op("Cast", hidden, output="narrow", to=TensorProto.BFLOAT16)
    original = with_output(hidden, builder, TOKENS)
    original.graph.output.append(helper.make_tensor_value_info("narrow", TensorProto.BFLOAT16, TOKENS))
    save_model(rewrite(original, interface=interface).model, tmp_path / "packed.onnx")
    with Session(tmp_path / "packed.onnx") as session:
        results = session.run([[5, 6, 7], [8], []])
    assert [row.shape for row in results["narrow"]] == [(3, HIDDEN), (1, HIDDEN), (0, HIDDEN)]
    for narrow, wide in zip(results["narrow"], results["y"], strict=True):
        assert narrow.dtype == np.float32
        np.testing.assert_array_equal(narrow, wide.astype(ml_dtypes.bfloat16).astype(np.float32))

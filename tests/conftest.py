# SPDX-License-Identifier: Apache-2.0
"""Fixtures that tests of several folders share: tiny models as the rewriter would describe them."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx
import pytest
from hypothesis import HealthCheck, settings
from onnx import TensorProto, helper

if TYPE_CHECKING:
    from tests.support.rewritings import Rewritings

# Tests must not fail because a machine is slow or busy, and draw the same examples every time, as others do that have
# seeds: `--hypothesis-profile=search` draws others.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
settings.register_profile("search", settings.get_profile("any machine"), derandomize=False)
settings.load_profile("any machine")

VOCABULARY = 100
MAX_POSITIONS = 16
PROFILE = {"min_tokens": 1, "opt_tokens": 60, "max_tokens": 100, "max_batch": 12, "max_seq_len": 16}
LIBRARIES = ("libpadfree.so", "libpadfree_register.so", "libpadfree_triton_batching.so")
LIBRARIES += ("libtriton_padfree.so", "libpadfree_engine.so")

ModelWriter = Callable[..., Path]
pytest_plugins = ["tests.support.running", "tests.support.advice_plugin"]


def _metadata(interface: str, inputs: list[dict[str, Any]], outputs: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "format": 1,
        "version": "0.1.0",
        "interface": interface,
        "precision": "fp32",
        "inputs": inputs,
        "outputs": outputs,
        "max_positions": MAX_POSITIONS,
        "hidden_size": 2,
        "num_layers": 1,
        "coverage": {
            "complete": False,
            "packed_gemm_share": 0.5,
            "passes": [{"name": "attention", "replaced": 1, "missed": [{"node": "a", "reason": "causal mask"}]}],
            "islands": [{"node": "head", "reason": "reads a masked slot"}],
            "outputs": {"hidden": interface},
            "plugins": {},
        },
        "plugins": {},
    }


def _save(graph: onnx.GraphProto, metadata: dict[str, Any], path: Path) -> Path:
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    helper.set_model_props(model, {"padfree": json.dumps(metadata)})
    onnx.save_model(model, str(path))
    return path


@pytest.fixture(scope="session")
def rewritings(tmp_path_factory: pytest.TempPathFactory) -> Rewritings:
    """Rewritten models that are made only once, even if pytest-xdist spreads the tests over processes."""
    from tests.support.rewritings import Rewritings  # imports onnxruntime, which most tests do not need

    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "rewritings"
    folder.mkdir(exist_ok=True)
    return Rewritings(folder)


@pytest.fixture
def packed_metadata() -> dict[str, Any]:
    """The metadata of the packed model: two token inputs, one output per token and one per sequence."""
    return _metadata(
        "packed",
        [
            {"name": "input_ids", "role": "tokens", "limit": VOCABULARY, "dtype": "int32"},
            {"name": "token_type_ids", "role": "tokens", "limit": 2, "dtype": "int32"},
            {"name": "seq_lens", "role": "seq_lens", "limit": None, "dtype": "int32"},
        ],
        [
            {"name": "hidden", "layout": "packed", "dtype": "float32", "shape": [None, 2]},
            {"name": "lengths", "layout": "per_sequence", "dtype": "float32", "shape": [None, 1]},
        ],
    )


@pytest.fixture
def packed_model(packed_metadata: dict[str, Any], tmp_path: Path) -> ModelWriter:
    """Writes a packed model: hidden [T, 2] is (id, type) of every token, and lengths [B, 1] the sequences' lengths."""

    def write(name: str = "packed.onnx", **changes: Any) -> Path:
        axes = helper.make_tensor("last_axis", TensorProto.INT64, [1], [1])
        nodes = [
            helper.make_node("Cast", ["input_ids"], ["ids"], to=TensorProto.FLOAT),
            helper.make_node("Cast", ["token_type_ids"], ["types"], to=TensorProto.FLOAT),
            helper.make_node("Cast", ["seq_lens"], ["lens"], to=TensorProto.FLOAT),
            helper.make_node("Unsqueeze", ["ids", "last_axis"], ["ids_column"]),
            helper.make_node("Unsqueeze", ["types", "last_axis"], ["types_column"]),
            helper.make_node("Concat", ["ids_column", "types_column"], ["hidden"], axis=1),
            helper.make_node("Unsqueeze", ["lens", "last_axis"], ["lengths"]),
        ]
        graph = helper.make_graph(
            nodes,
            "packed",
            [
                helper.make_tensor_value_info("input_ids", TensorProto.INT32, ["T"]),
                helper.make_tensor_value_info("token_type_ids", TensorProto.INT32, ["T"]),
                helper.make_tensor_value_info("seq_lens", TensorProto.INT32, ["B"]),
            ],
            [
                helper.make_tensor_value_info("hidden", TensorProto.FLOAT, ["T", 2]),
                helper.make_tensor_value_info("lengths", TensorProto.FLOAT, ["B", 1]),
            ],
            [axes],
        )
        return _save(graph, {**packed_metadata, **changes}, tmp_path / name)

    return write


@pytest.fixture
def padded_model(tmp_path: Path) -> ModelWriter:
    """Writes a padded model: hidden [B, S, 1] is id + 1000 * mask, and kept [B, 1] the number of kept slots."""

    def write(name: str = "padded.onnx") -> Path:
        initializers = [
            helper.make_tensor("last_axis", TensorProto.INT64, [1], [2]),
            helper.make_tensor("slots", TensorProto.INT64, [1], [1]),
            helper.make_tensor("thousand", TensorProto.INT64, [], [1000]),
        ]
        nodes = [
            helper.make_node("Mul", ["attention_mask", "thousand"], ["marked"]),
            helper.make_node("Add", ["input_ids", "marked"], ["sum"]),
            helper.make_node("Cast", ["sum"], ["sum_float"], to=TensorProto.FLOAT),
            helper.make_node("Unsqueeze", ["sum_float", "last_axis"], ["hidden"]),
            helper.make_node("ReduceSum", ["attention_mask", "slots"], ["count"]),
            helper.make_node("Cast", ["count"], ["kept"], to=TensorProto.FLOAT),
        ]
        grid = ["B", "S"]
        graph = helper.make_graph(
            nodes,
            "padded",
            [
                helper.make_tensor_value_info("input_ids", TensorProto.INT64, grid),
                helper.make_tensor_value_info("attention_mask", TensorProto.INT64, grid),
            ],
            [
                helper.make_tensor_value_info("hidden", TensorProto.FLOAT, [*grid, 1]),
                helper.make_tensor_value_info("kept", TensorProto.FLOAT, ["B", 1]),
            ],
            initializers,
        )
        metadata = _metadata(
            "padded",
            [
                {"name": "input_ids", "role": "tokens", "limit": VOCABULARY, "dtype": "int64"},
                {"name": "attention_mask", "role": "mask", "limit": None, "dtype": "int64"},
            ],
            [
                {"name": "hidden", "layout": "padded", "dtype": "float32"},
                {"name": "kept", "layout": "per_sequence", "dtype": "float32"},
            ],
        )
        return _save(graph, metadata, tmp_path / name)

    return write


@pytest.fixture
def libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with padfree's libraries, in which padfree finds them."""
    folder = tmp_path / "installed"
    folder.mkdir()
    for name in LIBRARIES:
        (folder / name).write_bytes(name.encode())
    monkeypatch.setenv("PADFREE_LIBRARY", str(folder / "libpadfree.so"))
    return folder


@pytest.fixture
def write_plan(tmp_path: Path, packed_metadata: dict[str, Any], libraries: Path) -> ModelWriter:
    """Writes model.plan and model.plan.json: by default a packed plan of TensorRT 10.6.0 with PROFILE."""
    assert libraries.is_dir()

    def write(*, tensorrt: str = "10.6.0", profile: dict[str, int] | None = None, **changes: Any) -> Path:
        content = b"a serialised engine"
        engine = {
            "tensorrt": tensorrt,
            "gpu_name": "NVIDIA H200",
            "compute_capability": "9.0",
            "profile": {**PROFILE, **(profile or {})},
            "plan_bytes": len(content),
            "plan_sha256": hashlib.sha256(content).hexdigest(),
            "plugin_layers": {},
        }
        path = tmp_path / "model.plan"
        path.write_bytes(content)
        path.with_name("model.plan.json").write_text(json.dumps({**packed_metadata, **changes, "engine": engine}))
        return path

    return write

# SPDX-License-Identifier: Apache-2.0
"""The body of PadfreeLinearFp8 in onnxruntime compared with numpy in float64, in every variant of its results."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper
from padfree.onnx_tools import RewriteError
from padfree.onnx_tools.operators import DOMAIN, OPERATORS, make_node, with_functions

from tests.support import reference as ref

from .bodies import TOLERANCE, rng

OPERATOR = "PadfreeLinearFp8"
LARGEST = 448.0
SCALE = 2.0**-5
PLAIN: dict[str, Any] = {
    **dict.fromkeys(("has_residual", "has_x_moments", "has_residual_moments", "has_moments", "gated", "rms"), 0),
    "activation": "none",
    "rotary_features": 0,
    "x_epsilon": 0.0,
    "residual_epsilon": 0.0,
    "results": "both",
    "y_scale": 0.25,
}


def e4m3(x: np.ndarray) -> np.ndarray:
    """The nearest e4m3 number, ties to even, saturated: by its definition, in float64."""
    size = np.minimum(np.abs(x.astype(np.float64)), LARGEST)
    step = 2.0 ** (np.floor(np.log2(np.maximum(size, 2.0**-6))) - 3)
    return np.sign(x) * np.minimum(np.round(size / step) * step, LARGEST)


def run(feeds: dict[str, np.ndarray], opset: int = 21, **attributes: Any) -> list[np.ndarray]:
    """x and weight are e4m3 numbers stored as float32; so are results in e4m3."""
    spec = OPERATORS[OPERATOR]
    inputs, outputs = spec.inputs_for(attributes), spec.outputs_for(attributes)
    assert sorted(item.name for item in inputs) == sorted(feeds)
    values = [f"{item.name}_e4m3" if item.type == "fp8" else item.name for item in inputs]
    items = [f"out_{item.name}" for item in outputs]
    nodes = [
        helper.make_node("Cast", [item.name], [f"{item.name}_e4m3"], to=TensorProto.FLOAT8E4M3FN)
        for item in inputs
        if item.type == "fp8"
    ]
    nodes.append(make_node(OPERATOR, values, items, name="node", **attributes))
    nodes += [helper.make_node("Cast", [name], [f"{name}_float"], to=TensorProto.FLOAT) for name in items]
    shapes = {name: [f"{name}_{axis}" for axis in range(value.ndim)] for name, value in feeds.items()}
    types = {name: helper.np_dtype_to_tensor_dtype(value.dtype) for name, value in feeds.items()}
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, types[name], shapes[name]) for name in feeds],
        [helper.make_tensor_value_info(f"{name}_float", TensorProto.FLOAT, None) for name in items],
    )
    imports = [helper.make_opsetid("", opset), helper.make_opsetid(DOMAIN, 1)]
    model = with_functions(helper.make_model(graph, opset_imports=imports, ir_version=10))
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds))


def feeds_of(tokens: int, depth: int, features: int) -> dict[str, np.ndarray]:
    r = rng()
    return {
        "x": e4m3(r.standard_normal((tokens, depth)) * 40).astype(np.float32),
        "weight": e4m3(r.standard_normal((features, depth)) * 100).astype(np.float32),
        "scale": (SCALE * r.uniform(1e-3, 3e-3, features)).astype(np.float32),
        "bias": r.standard_normal(features).astype(np.float32),
    }


def plain_of(feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The inputs for PadfreeLinear: x without its scale, because the weight's scale includes it."""
    rest = {name: value for name, value in feeds.items() if name not in ("weight", "scale")}
    return {**rest, "weight": (feeds["weight"] * feeds["scale"][:, None].astype(np.float64)).T}


def check(actual: list[np.ndarray], expected: np.ndarray, results: str, y_scale: float) -> None:
    if results != "e4m3":
        np.testing.assert_allclose(actual[0], expected, **TOLERANCE)
    if results != "act":
        wanted = e4m3(expected / y_scale)
        last = actual[1 if results == "both" else 0]
        assert last.shape == wanted.shape
        assert np.mean(last == wanted) >= 0.999 if wanted.size else True
        np.testing.assert_allclose(last, wanted, rtol=2.0**-3)


@pytest.mark.parametrize("opset", [19, 21, 23])
@pytest.mark.parametrize("results", ["act", "e4m3", "both"])
@pytest.mark.parametrize("activation", OPERATORS[OPERATOR].attribute("activation").allowed)
def test_results(opset: int, results: str, activation: str) -> None:
    for tokens in (6, 0):
        feeds = feeds_of(tokens, 48, 32)
        actual = run(feeds, opset, **{**PLAIN, "results": results, "activation": activation})
        check(actual, ref.linear(**plain_of(feeds), activation=activation), results, 0.25)


@pytest.mark.parametrize("rms", [0, 1])
@pytest.mark.parametrize("flags", [1, 2, 4, 5, 6])  # of x, of the residual, of y; the first two are never combined
def test_moments(flags: int, rms: int) -> None:
    of_x, of_residual, of_y = (flags >> i & 1 for i in range(3))
    feeds, r = feeds_of(7, 128, 128), rng()
    feeds["residual"] = (r.standard_normal((7, 128)) + 2).astype(np.float32)
    real = feeds["x"] * SCALE + r.uniform(-0.01, 0.01, feeds["x"].shape)  # rows whose rounding may have given x
    if of_x:
        feeds["x_moments"] = ref.moments(real).astype(np.float32)
    if of_residual:
        feeds["residual_moments"] = ref.moments(feeds["residual"]).astype(np.float32)
        feeds["residual_scale"] = r.standard_normal(128).astype(np.float32)
    epsilons = {"x_epsilon": 0.5 * of_x, "residual_epsilon": 0.25 * of_residual}
    has = {"has_residual": 1, "has_x_moments": of_x, "has_residual_moments": of_residual, "has_moments": of_y}
    actual = run(feeds, **{**PLAIN, **has, **epsilons, "rms": rms})
    expected = ref.linear(**plain_of(feeds), activation="none", rms=bool(rms), **epsilons)
    check(actual, expected, "both", 0.25)
    for moments in actual[2:]:
        np.testing.assert_allclose(moments, ref.moments(expected), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("results", ["act", "e4m3"])
def test_gated(results: str) -> None:
    feeds = feeds_of(5, 48, 64)
    actual = run(feeds, **{**PLAIN, "results": results, "gated": 1, "activation": "silu"})
    check(actual, ref.linear(**plain_of(feeds), activation="silu", gated=True), results, 0.25)


def test_rotated_pairs() -> None:
    feeds, r = feeds_of(5, 48, 64), rng()
    feeds["positions"] = r.integers(0, 300, 5).astype(np.int32)
    feeds["frequencies"] = r.uniform(0, 1, 16).astype(np.float32)
    actual = run(feeds, **{**PLAIN, "results": "act", "rotary_features": 32})
    check(actual, ref.linear(**plain_of(feeds), activation="none"), "act", 0.25)


def test_large_results_saturate() -> None:
    feeds = feeds_of(5, 48, 32)
    (y,) = run(feeds, **{**PLAIN, "results": "e4m3", "y_scale": 2.0**-10})
    wanted = ref.linear(**plain_of(feeds), activation="none") * 2.0**10
    assert np.all(y[wanted > 500] == LARGEST)
    assert np.all(y[wanted < -500] == -LARGEST)
    assert np.any(np.abs(wanted) > 500)


def test_old_opsets_are_refused() -> None:
    with pytest.raises(RewriteError, match="PadfreeLinearFp8 with e4m3 needs opset 19 or newer, the model has 18"):
        run(feeds_of(2, 16, 16), 18, **PLAIN)


@pytest.mark.parametrize(
    "change",
    [
        {"gated": 1},
        {"results": "e4m3", "has_moments": 1},
        {"rotary_features": 16},
        {"y_scale": 0.0},
        {"y_scale": float("nan")},
        {"results": "none"},
    ],
    ids=str,
)
def test_what_there_is_no_kernel_for_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(RewriteError, match=OPERATOR):
        make_node(OPERATOR, ["x", "w", "s", "b"], ["y", "z"], name="node", **{**PLAIN, **change})

# SPDX-License-Identifier: Apache-2.0
"""The body of PadfreeLinearInt8 in onnxruntime compared with numpy in float64, in every variant of its results."""

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

OPERATOR = "PadfreeLinearInt8"
PLAIN: dict[str, Any] = {
    **dict.fromkeys(("has_residual", "has_x_moments", "has_residual_moments", "has_moments", "gated", "rms"), 0),
    "activation": "none",
    "rotary_features": 0,
    "x_epsilon": 0.0,
    "residual_epsilon": 0.0,
    "results": "both",
}


def run(feeds: dict[str, np.ndarray], opset: int = 19, **attributes: Any) -> list[np.ndarray]:
    spec = OPERATORS[OPERATOR]
    inputs, outputs = spec.inputs_for(attributes), spec.outputs_for(attributes)
    assert sorted(item.name for item in inputs) == sorted(feeds)
    names = [f"out_{item.name}" for item in outputs]
    types = {"int8": TensorProto.INT8}
    graph = helper.make_graph(
        [make_node(OPERATOR, [item.name for item in inputs], names, name="node", **attributes)],
        "g",
        [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), [None] * value.ndim)
            for name, value in feeds.items()
        ],
        [
            helper.make_tensor_value_info(name, types.get(item.type, TensorProto.FLOAT), None)
            for name, item in zip(names, outputs, strict=True)
        ],
    )
    imports = [helper.make_opsetid("", opset), helper.make_opsetid(DOMAIN, 1)]
    model = with_functions(helper.make_model(graph, opset_imports=imports, ir_version=10))
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds))


def feeds_of(tokens: int, depth: int, features: int, results: str = "both", *, gated: bool = False) -> dict[str, Any]:
    r = rng()
    feeds = {
        "x": r.integers(-128, 128, (tokens, depth)).astype(np.int8),
        "weight": r.integers(-127, 128, (features, depth)).astype(np.int8),
        "scale": r.uniform(1e-5, 3e-5, features).astype(np.float32),
        "bias": r.standard_normal(features).astype(np.float32),
    }
    if results != "act":
        feeds["y_factors"] = r.uniform(10, 60, features // (2 if gated else 1)).astype(np.float32)
    return feeds


def plain_of(feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The inputs for PadfreeLinear: x without its scale, because the weight's scale includes it."""
    rest = {name: value for name, value in feeds.items() if name not in ("weight", "scale", "y_factors", "x")}
    weight = (feeds["weight"].astype(np.float64) * feeds["scale"][:, None].astype(np.float64)).T
    return {**rest, "x": feeds["x"].astype(np.float64), "weight": weight}


def check(actual: list[np.ndarray], expected: np.ndarray, results: str, factors: np.ndarray | None) -> None:
    if results != "int8":
        np.testing.assert_allclose(actual[0], expected, **TOLERANCE)
    if results != "act":
        assert factors is not None
        wanted = np.clip(np.rint(expected * factors), -128, 127)
        last = actual[1 if results == "both" else 0]
        assert last.dtype == np.int8
        assert last.shape == wanted.shape
        assert np.mean(last == wanted) >= 0.999 if wanted.size else True
        assert np.abs(last - wanted).max(initial=0) <= 1


@pytest.mark.parametrize("opset", [14, 19, 23])
@pytest.mark.parametrize("results", ["act", "int8", "both"])
@pytest.mark.parametrize("activation", OPERATORS[OPERATOR].attribute("activation").allowed)
def test_results(opset: int, results: str, activation: str) -> None:
    for tokens in (6, 0):
        feeds = feeds_of(tokens, 48, 32, results)
        actual = run(feeds, opset, **{**PLAIN, "results": results, "activation": activation})
        check(actual, ref.linear(**plain_of(feeds), activation=activation), results, feeds.get("y_factors"))


def test_sums_are_exact_where_float32_is_not() -> None:
    feeds = feeds_of(3, 4096, 16, "act")
    feeds["x"][:], feeds["weight"][:], feeds["scale"][:], feeds["bias"][:] = 127, 127, 1.0, 0.0
    feeds["weight"][:, 0] = 126
    (y,) = run(feeds, **{**PLAIN, "results": "act"})
    assert (y == np.float32(127 * (127 * 4095 + 126))).all()


@pytest.mark.parametrize("flags", [1, 2, 4, 5, 6])  # of x, of the residual, of y; the first two are never combined
def test_moments(flags: int) -> None:
    of_x, of_residual, of_y = (flags >> i & 1 for i in range(3))
    feeds, r = feeds_of(7, 128, 128), rng()
    feeds["residual"] = (r.standard_normal((7, 128)) + 2).astype(np.float32)
    if of_x:
        feeds["x_moments"] = ref.moments(feeds["x"] + r.uniform(-0.5, 0.5, feeds["x"].shape)).astype(np.float32)
    if of_residual:
        feeds["residual_moments"] = ref.moments(feeds["residual"]).astype(np.float32)
        feeds["residual_scale"] = r.standard_normal(128).astype(np.float32)
    epsilons = {"x_epsilon": 0.5 * of_x, "residual_epsilon": 0.25 * of_residual}
    has = {"has_residual": 1, "has_x_moments": of_x, "has_residual_moments": of_residual, "has_moments": of_y}
    actual = run(feeds, **{**PLAIN, **has, **epsilons})
    expected = ref.linear(**plain_of(feeds), activation="none", rms=False, **epsilons)
    check(actual, expected, "both", feeds["y_factors"])
    for moments in actual[2:]:
        np.testing.assert_allclose(moments, ref.moments(expected), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("results", ["act", "int8"])
def test_gated(results: str) -> None:
    feeds = feeds_of(5, 48, 64, results, gated=True)
    actual = run(feeds, **{**PLAIN, "results": results, "gated": 1, "activation": "silu"})
    expected = ref.linear(**plain_of(feeds), activation="silu", gated=True)
    check(actual, expected, results, feeds.get("y_factors"))


def test_what_has_no_number_in_int8() -> None:
    feeds = feeds_of(4, 16, 16, "int8")
    feeds["y_factors"][:] = 1.0
    feeds["scale"][:4] = 0.0
    feeds["bias"][:4] = [np.nan, np.inf, -np.inf, 1e30]
    (y,) = run(feeds, **{**PLAIN, "results": "int8"})
    np.testing.assert_array_equal(y[:, :4], [[0, 127, -128, 127]] * 4)


@pytest.mark.parametrize(
    "change",
    [{"gated": 1}, {"results": "int8", "has_moments": 1}, {"rotary_features": 16}, {"results": "e4m3"}],
    ids=str,
)
def test_what_there_is_no_kernel_for_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(RewriteError, match=OPERATOR):
        make_node(OPERATOR, ["x", "w", "s", "b", "f"], ["y", "z"], name="node", **{**PLAIN, **change})

# SPDX-License-Identifier: Apache-2.0
"""The questions of tests/gpu/fp8_probe.py: networks in ONNX's text form, and their results in NumPy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper, parser

from .fp8_plugins import BF16, FP8, HALF, LARGEST

TOKENS, WIDTH, FEATURES = 48, 256, 128
E4M3 = np.dtype(ml_dtypes.float8_e4m3fn)
X_SCALE, Y_SCALE = 0.25, 0.5
BF16_TWICE = 0.1  # bf16 before e4m3: values are rounded twice, so that they may end one step off
Arrays = Mapping[str, np.ndarray]


def e4m3(value: np.ndarray) -> np.ndarray:
    """Values rounded to e4m3 and back to float32, saturated."""
    return np.clip(value.astype(np.float32), -LARGEST, LARGEST).astype(E4M3).astype(np.float32)


def x() -> np.ndarray:
    """[T, K] fp16 with some values beyond e4m3's largest."""
    values = np.random.default_rng(0).standard_normal((TOKENS, WIDTH)) * 40
    values[0, 0], values[1, 1] = 1000, -1000
    return values.astype(np.float16)


def weight() -> np.ndarray:
    """[N, K] e4m3."""
    return (np.random.default_rng(1).standard_normal((FEATURES, WIDTH)) * 8).astype(np.float32).astype(E4M3)


def weight_scale() -> np.ndarray:
    """[N] float32."""
    return np.random.default_rng(2).uniform(0.01, 0.02, FEATURES).astype(np.float32)


def gemm() -> np.ndarray:
    """x in e4m3 times the weights of e4m3, [T, N] float32."""
    made: np.ndarray = e4m3(x()) @ weight().astype(np.float32).T
    return made


def _scaled_gemm() -> np.ndarray:
    """What a product with quantised input and weights gives, before its scales are rounded to fp16."""
    quantised = e4m3(x().astype(np.float32) / X_SCALE) * X_SCALE
    made: np.ndarray = quantised @ (weight().astype(np.float32) * weight_scale()[:, None]).T
    return made


@dataclass(frozen=True)
class Question:
    """A network in ONNX's text form: input x [T, K] in fp16 unless another is given, output y.

    `wanted` is y in float32; `tolerance` is relative to its largest value. `refused`: TensorRT 10.6 does not build it.
    """

    text: str
    body: str
    wanted: Callable[[], np.ndarray]
    tolerance: float = 0.0
    given: str = HALF
    result: str = HALF
    columns: int = WIDTH
    opset: int = 19
    refused: bool = False
    weights: Arrays = field(default_factory=dict)

    def model(self) -> ModelProto:
        types = {HALF: "float16", FP8: "float8e4m3fn", BF16: "bfloat16"}
        model = parser.parse_model(
            f'<ir_version: 10, opset_import: ["" : {self.opset}, "probe" : 1]>\n'
            f"probe ({types[self.given]}[T,{WIDTH}] x) => ({types[self.result]}[R,{self.columns}] y) {{ {self.body} }}"
        )
        model.graph.initializer.extend(_initializer(name, value) for name, value in self.weights.items())
        for number, node in enumerate(model.graph.node):
            node.name = f"{node.op_type}_{number}"
        return model


def _initializer(name: str, value: np.ndarray) -> TensorProto:
    if value.dtype == E4M3:
        return helper.make_tensor(name, TensorProto.FLOAT8E4M3FN, value.shape, value.tobytes(), raw=True)
    return numpy_helper.from_array(value, name)


def _scales(kind: Any = np.float16) -> dict[str, np.ndarray]:
    zero = np.zeros((), E4M3)
    return {
        "x_scale": np.array(X_SCALE, kind),
        "y_scale": np.array(Y_SCALE, kind),
        "zero": zero,
        "w": weight(),
        "w_scale": weight_scale().astype(kind),
        "zeros": np.zeros(FEATURES, E4M3),
    }


def _first(rows: np.ndarray) -> np.ndarray:
    return np.concatenate([e4m3(x()), e4m3(x())])[rows]


def _quantised_input() -> np.ndarray:
    return e4m3(x().astype(np.float32) / X_SCALE)


NARROW = "n = probe.Fp8Narrow(x)"
Q = "q = QuantizeLinear(x, x_scale, zero)"
DQ_WEIGHT = "wide = DequantizeLinear<axis = 0>(w, w_scale, zeros) turned = Transpose<perm = [1, 0]>(wide)"
QUESTIONS = (
    Question("e4m3 between plugins", f"{NARROW} y = probe.Fp8Widen(n)", lambda: e4m3(x())),
    Question(
        "e4m3 initializer through the parser into a plugin",
        f"{NARROW} y = probe.Fp8Product(n, w)",
        gemm,
        1e-3,
        columns=FEATURES,
        weights=_scales(),
    ),
    Question(
        "QuantizeLinear (fp16 scale) into a plugin", f"{Q} y = probe.Fp8Widen(q)", _quantised_input, weights=_scales()
    ),
    Question(
        "QuantizeLinear of fp16 by an fp32 scale, opset 23",
        f"{Q} y = probe.Fp8Widen(q)",
        _quantised_input,
        opset=23,
        weights=_scales(np.float32),
    ),
    Question(
        "a plugin into DequantizeLinear",
        f"{NARROW} y = DequantizeLinear(n, y_scale, zero)",
        lambda: e4m3(x()) * Y_SCALE,
        weights=_scales(),
    ),
    Question(
        "a plugin's e4m3 into TensorRT's product, weight scales a feature",
        f"{NARROW} d = DequantizeLinear(n, y_scale, zero) {DQ_WEIGHT} y = MatMul(d, turned)",
        lambda: e4m3(x()) * Y_SCALE @ (weight().astype(np.float32) * weight_scale()[:, None]).T,
        2e-3,
        columns=FEATURES,
        weights=_scales(),
    ),
    Question(
        "the same tensor of a plugin read by a plugin and by TensorRT's product",
        f"{NARROW} d = DequantizeLinear(n, one, zero) {DQ_WEIGHT} a = MatMul(d, turned) "
        "b = probe.Fp8Product(n, w) c = Mul(b, eighth) y = Add(a, c)",
        lambda: e4m3(x()) @ (weight().astype(np.float32) * weight_scale()[:, None]).T + gemm() / 64,
        4e-3,
        columns=FEATURES,
        weights={**_scales(), "one": np.array(1, np.float16), "eighth": np.array(1 / 64, np.float16)},
    ),
    Question(
        "TensorRT's product between Q/DQ, as ModelOpt writes it",
        f"{Q} d = DequantizeLinear(q, x_scale, zero) {DQ_WEIGHT} y = MatMul(d, turned)",
        _scaled_gemm,
        2e-3,
        columns=FEATURES,
        weights=_scales(),
    ),
    Question(
        "e4m3 and fp16 from one plugin",
        "n, h = probe.Fp8Both(x) f = probe.Fp8Widen(n) y = Add(f, h)",
        lambda: e4m3(x()) + x().astype(np.float32),
        1e-3,
    ),
    Question("an e4m3 output of the engine", "y = probe.Fp8Narrow(x)", lambda: e4m3(x()), result=FP8),
    Question("an e4m3 input of the engine", "y = probe.Fp8Widen(x)", lambda: e4m3(x()), given=FP8),
    Question(
        "weights as int32 words into a plugin",
        f"{NARROW} y = probe.Fp8ProductWords(n, words)",
        gemm,
        1e-3,
        columns=FEATURES,
        weights={"words": np.ascontiguousarray(weight()).view(np.int32)},
    ),
    Question(
        "weights as int8 into a plugin",
        f"{NARROW} y = probe.Fp8ProductBytes(n, bytes)",
        gemm,
        1e-3,
        columns=FEATURES,
        refused=True,
        weights={"bytes": weight().view(np.int8)},
    ),
    Question(
        "bf16 into an e4m3 plugin",
        "n = probe.Fp8NarrowBf16(x) y = probe.Fp8Widen(n)",
        lambda: e4m3(x()),
        BF16_TWICE,
        given=BF16,
    ),
    Question(
        "Reshape of e4m3",
        f"{NARROW} r = Reshape(n, shape) s = Reshape(r, back) y = probe.Fp8Widen(s)",
        lambda: e4m3(x()),
        weights={"shape": np.array([-1, 4, WIDTH // 4]), "back": np.array([-1, WIDTH])},
    ),
    Question(
        "Gather of e4m3",
        f"{NARROW} r = Gather<axis = 0>(n, rows) y = probe.Fp8Widen(r)",
        lambda: _first(np.array([5, 0, 7])),
        refused=True,
        weights={"rows": np.array([5, 0, 7])},
    ),
    Question(
        "Concat of e4m3",
        f"{NARROW} r = Concat<axis = 0>(n, n) y = probe.Fp8Widen(r)",
        lambda: _first(np.arange(2 * TOKENS)),
    ),
    Question(
        "Slice of e4m3",
        f"{NARROW} r = Slice(n, from, to, axis) y = probe.Fp8Widen(r)",
        lambda: _first(np.arange(3, 9)),
        refused=True,
        weights={"from": np.array([3]), "to": np.array([9]), "axis": np.array([0])},
    ),
    Question(
        "QuantizeLinear of bf16 by a bf16 scale into a plugin",
        "s = Cast<to = 16>(x_scale) q = QuantizeLinear(x, s, zero) y = probe.Fp8Widen(q)",
        _quantised_input,
        BF16_TWICE,
        given=BF16,
        weights=_scales(),
    ),
    Question(
        "Cast of fp16 to e4m3",
        "r = Cast<to = 17>(x) y = probe.Fp8Widen(r)",
        lambda: e4m3(x()),
        refused=True,
        weights={},
    ),
)

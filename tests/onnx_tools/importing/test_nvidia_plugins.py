# SPDX-License-Identifier: Apache-2.0
"""Files with NVIDIA's BERT plugins: imported if they are float, refused by name otherwise; engines are refused."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper
from padfree.onnx_tools import ModelFileError, RewriteError, rewrite
from padfree.onnx_tools.importing.nvidia import ATTENTION, EMBEDDING, GELU, LINEAR, SKIP

from tests.support.exports import session

INPUTS = ("input_ids", "segment_ids", "cu_seqlens", "max_seqlen")
HIDDEN, HEADS, INNER, VOCABULARY, POSITIONS, LAYERS = 16, 2, 24, 30, 20, 2
LENGTHS = (5, 1, 9)


class Bert:
    """A BERT with random weights, both as a file with plugins and in float64."""

    def __init__(self, *, linear: str, gelu: str, domain: str = "", **attributes: Any) -> None:
        self.nodes: list[Any] = []
        self.arrays: dict[str, Any] = {}
        self.rng = np.random.default_rng(1)
        self.linear_op, self.domain = linear, domain
        size = {"word": VOCABULARY, "token_type": 2, "position": POSITIONS}
        self.tables = {name: self.random(rows, HIDDEN, spread=1.0) for name, rows in size.items()}
        self.norms = [self.norm() for _ in range(1 + 2 * LAYERS)]
        fields = {
            f"bert_embeddings_{name}_embeddings": numpy_helper.from_array(t.ravel()) for name, t in self.tables.items()
        }
        fields |= {f"bert_embeddings_layernorm_{key}": value.tolist() for key, value in self.norms[0].items()}
        x = self.plugin(EMBEDDING, list(INPUTS), ["embedded", "mask"], output_fp16=1, **fields)
        self.layers = []
        for layer in range(LAYERS):
            sizes = {
                "qkv": (3 * HIDDEN, HIDDEN),
                "out": (HIDDEN, HIDDEN),
                "up": (INNER, HIDDEN),
                "down": (HIDDEN, INNER),
            }
            weights = {name: (self.random(*shape), self.random(shape[0])) for name, shape in sizes.items()}
            self.layers.append(weights)
            qkv = self.linear(x, *weights["qkv"], f"qkv{layer}")
            kind = {
                "type_id": 1,
                "hidden_size": HIDDEN,
                "num_heads": HEADS,
                "has_mask": 1,
                "var_seqlen": 1,
                **attributes,
            }
            inputs = [qkv, "mask", "cu_seqlens", "max_seqlen"]
            attended = self.plugin(ATTENTION, inputs, [f"attended{layer}"], **kind)
            first, second = self.norms[1 + 2 * layer : 3 + 2 * layer]
            out = self.linear(attended, *weights["out"], f"out{layer}")
            x = self.skip([out, x], f"x{layer}", first)
            up = self.linear(x, *weights["up"], f"up{layer}")
            inner = self.activation(up, gelu, f"inner{layer}")
            down = self.linear(inner, *weights["down"], f"down{layer}")
            x = self.skip([down, x], f"y{layer}", second)
        self.output = x

    def random(self, *shape: int, spread: float = 0.3) -> Any:
        return (self.rng.standard_normal(shape) * spread).astype(np.float32)

    def norm(self) -> dict[str, Any]:
        return {"gamma": 1 + self.random(HIDDEN), "beta": self.random(HIDDEN)}

    def plugin(self, op: str, inputs: list[str], outputs: list[str], **fields: Any) -> str:
        self.nodes.append(helper.make_node(op, inputs, outputs, f"{op}_{outputs[0]}", domain=self.domain, **fields))
        return outputs[0]

    def skip(self, inputs: list[str], output: str, norm: dict[str, Any]) -> str:
        return self.plugin(SKIP, inputs, [output], type_id=1, **{key: value.tolist() for key, value in norm.items()})

    def linear(self, x: str, weight: Any, bias: Any, name: str) -> str:
        if self.linear_op == LINEAR:
            fields = {"W": numpy_helper.from_array(weight.ravel()), "B": bias.tolist()}
            return self.plugin(LINEAR, [x], [name], out_dims=len(weight), type_id=1, **fields)
        self.arrays |= {f"{name}_weight": weight[:, :, None, None], f"{name}_bias": bias}
        self.nodes.append(helper.make_node("Conv", [x, f"{name}_weight", f"{name}_bias"], [name], name))
        return name

    def activation(self, x: str, gelu: str, name: str) -> str:
        if gelu == GELU:
            return self.plugin(GELU, [x], [name], type_id=1)
        self.arrays |= {"root": np.full((1, 1, 1, 1), 2**0.5, np.float32), "one": np.ones((1, 1, 1, 1), np.float32),
                        "half": np.full((1, 1, 1, 1), 0.5, np.float32)}  # fmt: skip
        steps = (("Div", [x, "root"]), ("Erf", [f"{name}_Div"]), ("Add", [f"{name}_Erf", "one"]),
                 ("Mul", [x, f"{name}_Add"]))  # fmt: skip
        for op, inputs in steps:
            self.nodes.append(helper.make_node(op, inputs, [f"{name}_{op}"], f"{name}_{op}"))
        self.nodes.append(helper.make_node("Mul", [f"{name}_Mul", "half"], [name], name))
        return name

    def model(self) -> ModelProto:
        inputs = [helper.make_tensor_value_info(name, TensorProto.INT32, ["n"]) for name in INPUTS]
        result = helper.make_tensor_value_info(self.output, TensorProto.FLOAT, ["T", HIDDEN, 1, 1])
        weights = [numpy_helper.from_array(value, name) for name, value in self.arrays.items()]
        opsets = [helper.make_opsetid("", 17), *([helper.make_opsetid(self.domain, 1)] if self.domain else [])]
        return helper.make_model(helper.make_graph(self.nodes, "g", inputs, [result], weights), opset_imports=opsets)

    def truth(self, ids: Any, types: Any, gelu: str) -> Any:
        """Computes one sequence by itself, in float64."""

        def normalise(x: Any, norm: dict[str, Any]) -> Any:
            x = x - x.mean(-1, keepdims=True)
            return x / np.sqrt((x * x).mean(-1, keepdims=True)) * norm["gamma"] + norm["beta"]

        def act(x: Any) -> Any:
            if gelu == GELU:
                return 0.5 * x * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3)))
            return 0.5 * x * (1 + np.vectorize(math.erf)(x / 2**0.5))

        tables = {name: table.astype(np.float64) for name, table in self.tables.items()}
        x = normalise(tables["word"][ids] + tables["token_type"][types] + tables["position"][: len(ids)], self.norms[0])
        for layer, weights in enumerate(self.layers):
            linear = {name: (w.astype(np.float64).T, b) for name, (w, b) in weights.items()}
            qkv = (x @ linear["qkv"][0] + linear["qkv"][1]).reshape(len(ids), HEADS, 3, HIDDEN // HEADS)
            q, k, v = (qkv[:, :, part].transpose(1, 0, 2) for part in range(3))
            scores = np.exp(q @ k.transpose(0, 2, 1) * (HIDDEN // HEADS) ** -0.5)
            mixed = (scores / scores.sum(-1, keepdims=True) @ v).transpose(1, 0, 2).reshape(len(ids), HIDDEN)
            x = normalise(mixed @ linear["out"][0] + linear["out"][1] + x, self.norms[1 + 2 * layer])
            inner = act(x @ linear["up"][0] + linear["up"][1])
            x = normalise(inner @ linear["down"][0] + linear["down"][1] + x, self.norms[2 + 2 * layer])
        return x


@pytest.mark.parametrize("linear", ["Conv", LINEAR])
@pytest.mark.parametrize("gelu", ["Erf", GELU])
@pytest.mark.parametrize("domain", ["", "trt.plugins"])
def test_a_float_file_gives_the_same_numbers_by_the_same_call(linear: str, gelu: str, domain: str) -> None:
    bert = Bert(linear=linear, gelu=gelu, domain=domain)
    result = rewrite(bert.model(), interface="varseqlen", strict=True)
    assert [value.name for value in result.model.graph.input] == list(INPUTS)
    assert result.report.plugins["PadfreeAttention"] == LAYERS
    rng = np.random.default_rng(2)
    ids, types = [rng.integers(0, VOCABULARY, n) for n in LENGTHS], [rng.integers(0, 2, n) for n in LENGTHS]
    feeds = {"input_ids": np.concatenate(ids), "segment_ids": np.concatenate(types)}
    feeds |= {"cu_seqlens": np.cumsum([0, *LENGTHS]), "max_seqlen": np.zeros(max(LENGTHS))}
    actual = session(result.model).run(None, {name: value.astype(np.int32) for name, value in feeds.items()})[0]
    wanted = np.concatenate([bert.truth(*both, gelu) for both in zip(ids, types, strict=True)])
    np.testing.assert_allclose(actual, wanted, atol=2e-5)


def test_a_file_in_half_precision_is_widened() -> None:
    bert = Bert(linear="Conv", gelu="Erf")
    model = bert.model()
    for tensor in model.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float16), tensor.name))
    model.graph.node.append(helper.make_node("Cast", [bert.output], ["last"], "last", to=TensorProto.FLOAT16))
    model.graph.output[0].name = "last"
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT16
    ids = np.arange(6)
    actual = session(rewrite(model).model).run(None, {
        "input_ids": ids.astype(np.int32), "token_type_ids": np.zeros(6, np.int32), "seq_lens": np.array([6], np.int32)
    })[0]  # fmt: skip
    np.testing.assert_allclose(actual, bert.truth(ids, np.zeros(6, np.int64), "Erf"), atol=2e-2)


@pytest.mark.parametrize("attributes", [{"type_id": 2}, {"dq_probs": 0.5}])
@pytest.mark.parametrize("interface", ["packed", "padded", "varseqlen"])
def test_int8_is_refused_by_name(attributes: dict[str, Any], interface: str) -> None:
    message = rf"'{ATTENTION}_attended0' \({ATTENTION}\) computes in int8.*--interface varseqlen"
    with pytest.raises(RewriteError, match=message):
        rewrite(Bert(linear="Conv", gelu=GELU, **attributes).model(), interface=interface)


def test_what_is_not_known_is_refused_by_name() -> None:
    with pytest.raises(RewriteError, match="has var_seqlen 0: it reads padded tensors"):
        rewrite(Bert(linear="Conv", gelu=GELU, var_seqlen=0).model())
    model = Bert(linear="Conv", gelu=GELU).model()
    model.graph.node.append(helper.make_node("TopK", [model.graph.output[0].name, "k"], ["a", "b"], "chosen"))
    with pytest.raises(RewriteError, match=r"'chosen' \(TopK\) stands between NVIDIA's plugins"):
        rewrite(model)
    model = Bert(linear="Conv", gelu=GELU).model()
    model.graph.node[1].input[0] = "elsewhere"
    with pytest.raises(RewriteError, match="reads 'elsewhere', which does not come from NVIDIA's embedding plugin"):
        rewrite(model)


@pytest.mark.parametrize("suffix", [".engine", ".plan", ".trt"])
def test_an_engine_is_named(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"bert{suffix}"
    path.write_bytes(b"ftrt" + bytes(range(256)))
    with pytest.raises(ModelFileError, match=r"is a TensorRT engine, by its name.*migrating"):
        rewrite(path)

# SPDX-License-Identifier: Apache-2.0
"""However a model is written, the same comes out: random legal spellings of models that are rewritten completely.

Try more of them: PADFREE_TEST_SPELLINGS=1000 pytest tests/onnx_tools/random_models/test_spellings.py
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable

import onnx
import pytest
from onnx import ModelProto
from padfree.onnx_tools import load_model, rewrite

from tests.onnx_tools.agreement import INTERFACES, assert_agree
from tests.support import exports
from tests.support.encoder import HIDDEN, TOKENS, EncoderBuilder, one_layer

from .spellings import LAST, SPELLINGS

COUNT = int(os.environ.get("PADFREE_TEST_SPELLINGS", 24))


def plain() -> ModelProto:
    builder, hidden = one_layer()
    builder.op("Relu", hidden, output="y")
    return builder.model({"y": TOKENS})


def pooled_model() -> ModelProto:
    """A model with positions by a Range, clipped activations, and a head."""
    builder = EncoderBuilder(3)
    hidden = builder.layer(builder.embedding(), builder.padding_mask())
    hidden = builder.op("Clip", hidden, builder.constant(-2.0), builder.constant(2.0))
    first = builder.op("Squeeze", builder.op("Slice", hidden, *(builder.axes(i) for i in (0, 1, 1))), builder.axes(1))
    builder.op("Tanh", builder.linear(builder.op("Dropout", first), HIDDEN, 5), output="pooled")
    builder.op("Identity", hidden, output="y")
    return builder.model({"y": TOKENS, "pooled": ["batch", 5]})


MODELS: dict[str, Callable[[], ModelProto]] = {
    "plain": plain,
    "pooled": pooled_model,
    "TorchScript": lambda: exports.load("n_gemm"),
    "dynamo": lambda: exports.load("bart_p160_dy18"),
}
LAYERS = {"plain": 1, "pooled": 1, "TorchScript": 2, "dynamo": 2}


@pytest.mark.parametrize("number", range(COUNT))
def test_any_spelling(number: int, tmp_path: object) -> None:
    rng = random.Random(number)
    kind = rng.choices(list(MODELS), [4, 4, 1, 1])[0]
    model = MODELS[kind]()
    interface = rng.choice(INTERFACES)
    chosen = sorted(rng.sample(range(len(SPELLINGS)), rng.randrange(1, 6)))
    last = [item for item in LAST if rng.random() < 0.3]
    names = [SPELLINGS[index].__name__ for index in chosen] + [item.__name__ for item in last]
    for index in chosen:
        SPELLINGS[index](model, rng)
    exports.session(model)  # the spelling is legal
    spelled = ModelProto()
    spelled.CopyFrom(model)
    for item in last:
        item(spelled, rng)
    try:
        if rng.random() < 0.3:
            path = f"{tmp_path}/model.onnx"
            size = rng.choice([0, 100, 1024])
            onnx.save_model(spelled, path, save_as_external_data=True, size_threshold=size, location="weights.bin")
            result = rewrite(path, interface=interface, strict=True)
        else:
            result = rewrite(spelled, interface=interface, strict=True)
        assert result.report.plugins["PadfreeAttention"] == LAYERS[kind]
        unique = {item.name: item for item in model.graph.output}
        del model.graph.output[:]
        model.graph.output.extend(unique.values())
        assert [item.name for item in result.model.graph.output] == list(unique)
        assert_agree(model, result)
    except Exception as error:
        raise AssertionError(f"case {number}: {kind}, {interface}, {', '.join(names)}: {error}") from error


@pytest.mark.parametrize("spelling", [*SPELLINGS, *LAST], ids=lambda item: item.__name__)
def test_spellings_change_models(spelling: Callable[[ModelProto, random.Random], None]) -> None:
    """A spelling that does nothing would test nothing."""
    before = pooled_model()
    changed = 0
    for seed in range(4):
        model = pooled_model()
        spelling(model, random.Random(seed))
        changed += model.SerializeToString(deterministic=True) != before.SerializeToString(deterministic=True)
    assert changed or spelling.__name__ == "constants_as_weights"  # there are no Constant nodes yet


def test_data_files_are_read(tmp_path: object) -> None:
    path = f"{tmp_path}/model.onnx"
    onnx.save_model(plain(), path, save_as_external_data=True, size_threshold=0, location="weights.bin")
    assert_agree(plain(), rewrite(load_model(path), strict=True))

# SPDX-License-Identifier: Apache-2.0
"""Encoders of many families, wide enough for GEMMs to absorb norms, gates and rotations: results, and what is left."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from padfree.onnx_tools.files.metadata import read_metadata

from tests.support import exports
from tests.support.folding_encoders import NAMES, Layers, inputs_of, layers_of, load
from tests.support.messages import run, with_rounding
from tests.support.rewritings import Rewritings

# Both models round every tensor, but in different places, and errors of a few tokens differ a lot by chance.
TIMES_SEPARATE = 2.0
LAYERS: Mapping[str, Layers] = {
    "bert": Layers(linears=8, gated=0, turning=0, norming=6, norms=1, rotations=0),
    "deberta_v2": Layers(linears=9, gated=0, turning=0, norming=4, norms=3, rotations=0),
    "deberta_v3": Layers(linears=8, gated=0, turning=0, norming=6, norms=1, rotations=0),
    "embedding_gemma": Layers(linears=8, gated=2, turning=0, norming=4, norms=1, rotations=2, post_norms=4),
    "esm2": Layers(linears=8, gated=0, turning=2, norming=4, norms=1, rotations=0),
    "eurobert": Layers(linears=8, gated=2, turning=2, norming=4, norms=1, rotations=0),
    "gte": Layers(linears=8, gated=2, turning=2, norming=6, norms=1, rotations=0),
    "jina_v2": Layers(linears=8, gated=2, turning=0, norming=6, norms=1, rotations=0),
    "jina_v3": Layers(linears=8, gated=0, turning=2, norming=6, norms=1, rotations=0),
    "layoutlm": Layers(linears=8, gated=0, turning=0, norming=6, norms=2, rotations=0),
    "mbart": Layers(linears=8, gated=0, turning=0, norming=3, norms=2, rotations=0),
    "mmbert": Layers(linears=12, gated=3, turning=3, norming=5, norms=1, rotations=0),
    "modernbert": Layers(linears=8, gated=2, turning=2, norming=3, norms=1, rotations=0),
    "mpnet": Layers(linears=8, gated=0, turning=0, norming=6, norms=1, rotations=0),
    "nomic_bert": Layers(linears=8, gated=2, turning=2, norming=6, norms=1, rotations=0),
    "qwen3_embedding": Layers(linears=8, gated=2, turning=0, norming=4, norms=1, rotations=2),
    "roformer": Layers(linears=8, gated=0, turning=2, norming=6, norms=1, rotations=0),
    "t5": Layers(linears=8, gated=2, turning=0, norming=4, norms=1, rotations=0),
    "ultrabert": Layers(linears=8, gated=2, turning=2, norming=4, norms=1, rotations=0),
    "umt5": Layers(linears=8, gated=2, turning=0, norming=4, norms=1, rotations=0),
    "xlm": Layers(linears=8, gated=0, turning=0, norming=6, norms=1, rotations=0),
}


def error(actual: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.linalg.norm(actual - wanted) / np.linalg.norm(wanted))


@pytest.mark.parametrize("name", NAMES)
def test_layers(name: str, rewritings: Rewritings) -> None:
    assert layers_of(rewritings.of_linear(name).model) == LAYERS[name]


@pytest.mark.parametrize(
    ("name", "interface"), [*((name, "packed") for name in NAMES), *((name, "padded") for name in NAMES[1::3])]
)
def test_answers(name: str, interface: str, rewritings: Rewritings) -> None:
    """They are the original's for every sequence alone."""
    original, model = load(name), rewritings.of_linear(name, interface=interface).model
    inputs, metadata = inputs_of(original), read_metadata(model)
    requests, outputs = exports.sequences(inputs), [item["name"] for item in metadata["outputs"]]
    packed = interface == "packed"
    feeds = (
        exports.packed_feeds(metadata, requests) if packed else exports.padded_feeds(original, inputs, requests, False)
    )
    exports.compare(metadata, requests, exports.truth(original, requests, outputs), run(model, feeds, outputs), False)


@pytest.mark.parametrize(
    ("name", "precision"), [*((name, "fp16") for name in NAMES), *((name, "bf16") for name in NAMES[::3])]
)
def test_half_precision(name: str, precision: str, rewritings: Rewritings) -> None:
    """With every tensor rounded, results are about as close to float32 as those of separate operators."""
    exact = rewritings.of_folded(name).model
    metadata = read_metadata(exact)
    feeds = exports.packed_feeds(metadata, exports.sequences(inputs_of(load(name))))
    outputs = [item["name"] for item in metadata["outputs"]]
    (wanted,) = run(exact, feeds, outputs)
    models = [of(name, precision).model for of in (rewritings.of_folded, rewritings.of_linear)]
    errors = [error(run(with_rounding(model, precision), feeds, outputs)[0], wanted) for model in models]
    assert errors[1] <= TIMES_SEPARATE * errors[0]

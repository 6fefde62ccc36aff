# SPDX-License-Identifier: Apache-2.0
"""Which models may take shared prefixes: those whose rows of last tokens depend on the tokens before them alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from padfree.builder import cli
from padfree.onnx_tools import RewriteError, load_model, rewrite
from padfree.onnx_tools.operators import node_attributes, padfree_nodes
from padfree.runtime import Session

from tests.support import exports
from tests.support.scorers import TEXT, write_scorer
from tests.support.tiny_folders import read, write_reference

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
TOLERANCE = 1e-5
"""How far float32 numbers around 1 may differ between shared and unshared prefixes."""
ALLOWED = {
    "qwen3": ["--pooling", "lasttoken", "--normalize"],
    "qwen2_wide": ["--pooling", "lasttoken"],
    "llama_scaled": ["--pooling", "lasttoken"],
    "mistral_window": ["--pooling", "lasttoken"],
    "gemma_causal": ["--pooling", "lasttoken"],
}
REFUSED = {
    "qwen3": (["--pooling", "mean"], "pools by mean, which reads all tokens"),
    "llama": (["--pooling", "cls"], "pools by first, which reads all tokens"),
    "gemma": (["--pooling", "lasttoken"], "is not causal: tokens see those after them"),
    "llama_not_causal": (["--pooling", "lasttoken"], "is not causal: tokens see those after them"),
    "bert": (["--pooling", "lasttoken"], "is not causal: tokens see those after them"),
    "qwen2": ([], "output 'last_hidden_state' has a row for every token"),
}


def optimize(folder: Path, *options: str) -> int:
    return cli.main(["optimize", str(folder), "-o", str(folder.parent / "packed.onnx"), *options])


@pytest.mark.parametrize("name", ALLOWED)
def test_causal_models_with_last_tokens_rows_share(name: str, tmp_path: Path) -> None:
    """Verification has compared a batch with a shared prefix with the original; here long ones with unshared ones."""
    folder = write_reference(read(name), tmp_path / "model")
    assert optimize(folder, "--shared-prefixes", *ALLOWED[name]) == 0
    with Session(tmp_path / "packed.onnx") as session:
        limit = session.metadata.ids_input().limit or 2
        most = (session.metadata.longest or 120) - 20
        rng = np.random.default_rng(0)
        prefix = rng.integers(3, limit, min(most, 90)).tolist()
        sequences = [prefix + rng.integers(3, limit, rng.integers(1, 20)).tolist() for _ in range(9)]
        (alone,) = ([session.run([ids])[item.name][0] for ids in sequences] for item in session.metadata.outputs[:1])
        together = session.run(sequences)[session.metadata.outputs[0].name]
        assert session.tokens_saved == 8 * len(prefix)
    np.testing.assert_allclose(together, alone, atol=TOLERANCE, rtol=TOLERANCE)


@pytest.mark.parametrize("name", REFUSED)
def test_other_models_are_refused_with_the_reason(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options, reason = REFUSED[name]
    folder = write_reference(read(name), tmp_path / "model")
    assert optimize(folder, "--shared-prefixes", "--no-verify", *options) != 0
    error = capsys.readouterr().err
    assert "sequences cannot share prefixes" in error
    assert reason in error.replace("\n", " ")
    assert not (tmp_path / "packed.onnx").exists()


def test_embedding_gemma_is_refused() -> None:
    with pytest.raises(RewriteError, match=r"cannot share prefixes: attention .* is not causal"):
        rewrite(exports.load("embedding_gemma_dynamo", FIXTURES / "exports"), shared_prefixes=True, verify=False)


def test_the_padded_interface_has_none() -> None:
    model = load_model(FIXTURES / "bert_dynamo.onnx")
    with pytest.raises(RewriteError, match="shared prefixes are for the packed interface, and this is 'padded'"):
        rewrite(model, interface="padded", shared_prefixes=True)


def test_nothing_changes_where_nobody_asks(tmp_path: Path) -> None:
    folder = write_scorer("qwen3", tmp_path / "model")
    files = []
    for options in ([], ["--shared-prefixes"]):
        assert optimize(folder, "--scores", "yes,no", "--template", TEXT, *options) == 0
        files.append(onnx.load(tmp_path / "packed.onnx"))
    plain, shared = ({value.name for value in model.graph.input} for model in files)
    assert shared - plain == {"prefix"}
    flags = [[node_attributes(node).get("has_prefix") for node in padfree_nodes(model.graph)] for model in files]
    assert set(flags[0]) == {0, None}
    assert flags[1].count(1) > flags[0].count(1)

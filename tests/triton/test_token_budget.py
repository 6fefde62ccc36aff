# SPDX-License-Identifier: Apache-2.0
"""The batching library in the server's dynamic batcher: no batch exceeds its token budget, and batches still form."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from padfree.runtime import SessionError
from padfree.runtime.gpu import plugin_library

from tests.support.triton_server import TritonServer

from .calls import call_all

pytestmark = pytest.mark.needs_triton

BUDGET = 1000
OUTPUTS = ("tokens", "requests", "sum")
# Returns what was in the batch, and takes long enough for others to wait and for waiting batches to grow.
MODEL = """
import time
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        ids = [pb_utils.get_input_tensor_by_name(request, "input_ids").as_numpy() for request in requests]
        tokens, count = sum(array.size for array in ids), len(requests)
        time.sleep(0.005)
        return [pb_utils.InferenceResponse([
            pb_utils.Tensor("tokens", np.full((len(array), 1), tokens, np.int64)),
            pb_utils.Tensor("requests", np.full((len(array), 1), count, np.int64)),
            pb_utils.Tensor("sum", array.sum(1, dtype=np.int64)[:, None])]) for array in ids]
"""
CONFIG = """
backend: "python"
max_batch_size: 64
input {{ name: "input_ids" data_type: TYPE_INT32 dims: [-1] allow_ragged_batch: true }}
output {{ name: "tokens" data_type: TYPE_INT64 dims: [1] }}
output {{ name: "requests" data_type: TYPE_INT64 dims: [1] }}
output {{ name: "sum" data_type: TYPE_INT64 dims: [1] }}
instance_group {{ kind: KIND_CPU count: {instances} }}
dynamic_batching {{ {batching} }}
parameters {{ key: "padfree_max_tokens" value {{ string_value: "{budget}" }} }}
"""

Load = Callable[..., str]


@pytest.fixture
def load(server: TritonServer, other_repository: Path) -> Load:
    """Puts a model with the library into the server, and returns its name."""
    from tritonclient.http import InferenceServerClient

    try:
        library = plugin_library.find().with_name("libpadfree_triton_batching.so")
    except SessionError as error:
        pytest.skip(str(error))

    def run(name: str, batching: str = "", budget: str = str(BUDGET), instances: int = 1) -> str:
        folder = other_repository / name
        (folder / "1").mkdir(parents=True)
        (folder / "1" / "model.py").write_text(MODEL, encoding="utf-8")
        text = CONFIG.format(batching=batching, budget=budget, instances=instances)
        (folder / "config.pbtxt").write_text(text, encoding="utf-8")
        shutil.copy(library, folder / "batchstrategy.so")
        with InferenceServerClient(server.url("http")) as client:
            client.load_model(name)
        return name

    return run


@pytest.mark.parametrize(
    ("name", "batching", "instances"),
    [
        ("plain", "", 1),
        ("delayed", "max_queue_delay_microseconds: 3000", 1),
        ("bounded", "default_queue_policy { max_queue_size: 10000 }", 2),
    ],
)
def test_no_batch_is_over_the_budget(
    server: TritonServer, load: Load, name: str, batching: str, instances: int
) -> None:
    model = load(f"budget_{name}", batching, instances=instances)
    rng = np.random.default_rng(0)
    lengths = rng.choice([1, 5, 10, 30, 100], 600)
    items = rng.choice([1, 1, 1, 2, 3], 600)
    lengths[::40], items[::40] = BUDGET + 200, 1
    requests = [
        {"input_ids": rng.integers(0, 1000, shape, dtype=np.int32)} for shape in zip(items, lengths, strict=True)
    ]
    answers = call_all(server, "grpc", model, requests, OUTPUTS)
    sizes = []
    for request, answer in zip(requests, answers, strict=True):
        assert isinstance(answer, dict), answer
        ids = request["input_ids"]
        np.testing.assert_array_equal(answer["sum"][:, 0], ids.sum(1))
        sizes.append(int(answer["requests"][0, 0]))
        if ids.size <= BUDGET:
            assert ids.size <= answer["tokens"][0, 0] <= BUDGET
        else:
            assert sizes[-1] == 1
    assert np.mean(sizes) > 2


def test_a_wrong_budget_fails_the_load_with_the_reason(load: Load) -> None:
    from tritonclient.utils import InferenceServerException

    with pytest.raises(InferenceServerException, match="'padfree_max_tokens' is \"many\", allowed: a whole number"):
        load("budget_wrong", budget="many")

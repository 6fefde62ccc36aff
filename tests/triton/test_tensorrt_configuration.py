# SPDX-License-Identifier: Apache-2.0
"""The tensorrt backend's configuration, as the real server's own parser reads, completes and checks it.

The server for tests has no tensorrt backend. It logs how it reads the unchanged file before it looks for that backend.
For the checks that follow, the same configuration has a stand-in for the backend, a few lines of Python; the core does
everything else, including warm-up and reshaping.
"""

from __future__ import annotations

import re
import urllib.error
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from padfree.builder.triton import ServingOptions, write_repository

from tests.support.triton_server import TritonServer

from .calls import PROTOCOLS, call

pytestmark = pytest.mark.needs_triton

PlanWriter = Callable[..., Path]
COMPLETED = re.compile(r'"Server side auto-completed config: "\n(.*?)\n\n', re.DOTALL)
STAND_IN = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(pb_utils.get_input_tensor_by_name(request, "input_ids").as_numpy()) for request in requests]

    def answer(self, ids):
        if ids.min() < 1:
            raise ValueError("token 0, which the model excludes")
        hidden = np.stack([ids, -ids], axis=-1).astype(np.float32)
        tensors = {"hidden": hidden, "lengths": hidden[:, :1, 0], "score": ids[:, 0].astype(np.float16)}
        return pb_utils.InferenceResponse([pb_utils.Tensor(name, value) for name, value in tensors.items()])
"""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The server's repository, which is empty at the start; tests put models there and load them."""
    return tmp_path_factory.mktemp("served")


@pytest.fixture(scope="module")
def server(installed: Path, served: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    options = ("--log-verbose=1", "--model-control-mode=explicit")
    with TritonServer(installed, [served], tmp_path_factory.mktemp("server"), *options) as running:
        yield running


@pytest.fixture
def model(write_plan: PlanWriter, packed_metadata: dict[str, Any], served: Path, tmp_path: Path) -> Path:
    """A model's folder in the server's repository, as `padfree triton` writes it."""
    longest = {"name": "max_seqlen", "role": "max_seqlen", "limit": None, "dtype": "int32"}
    score = {"name": "score", "layout": "per_sequence", "dtype": "float16", "shape": [None]}
    plan = write_plan(
        inputs=[*packed_metadata["inputs"], longest],
        outputs=[*packed_metadata["outputs"], score],
        coverage={"excluded_ids": {"input_ids": [0]}},
    )
    name = f"bert{sum(1 for _ in served.iterdir())}"
    options = ServingOptions(name, "tensorrt", server="24.11", max_queue_delay_us=100, max_queue_size=7, instances=2)
    written = write_repository(plan, tmp_path / "models", options).folder / name
    return written.rename(served / name)


@pytest.fixture
def stand_in(model: Path) -> Path:
    """The same model, served on the CPU by STAND_IN instead of the tensorrt backend."""
    text = (model / "config.pbtxt").read_text()
    for given, replaced in (("model.plan", "model.py"), ("KIND_GPU", "KIND_CPU"), ('"tensorrt"', '"python"')):
        assert text.count(given) == 1
        text = text.replace(given, replaced)
    (model / "config.pbtxt").write_text(text)
    (model / "1" / "model.py").write_text(STAND_IN)
    (model / "batchstrategy.so").unlink()  # not a real library here; that one has tests of its own
    return model


def load(server: TritonServer, model: Path) -> str:
    """Loads a model, and returns the server's reason if it refuses."""
    try:
        server.post(f"v2/repository/models/{model.name}/load")
    except urllib.error.HTTPError as error:
        return error.read().decode()
    return ""


def differing(one: Any, other: Any) -> set[str]:
    """The names of the fields that differ between two configurations."""
    fields = {item.name for message in (one, other) for item, _ in message.ListFields()}
    assert len(fields) >= 12
    return {name for name in fields if getattr(one, name) != getattr(other, name)}


def test_the_server_reads_what_is_meant(server: TritonServer, model: Path) -> None:
    from google.protobuf import text_format
    from padfree.builder.triton.config import protobuf, read_text

    assert "unable to find backend library for backend 'tensorrt'" in load(server, model)
    texts = COMPLETED.findall(server.log.read_text())
    parsed = next(text_format.Parse(text, protobuf().ModelConfig()) for text in texts if f'"{model.name}"' in text)
    assert differing(parsed, read_text(model / "config.pbtxt")) == {"platform"}
    assert parsed.platform == "tensorrt_plan"  # follows from the backend


def test_the_server_accepts_it_and_warms_up(server: TritonServer, stand_in: Path) -> None:
    from google.protobuf import json_format
    from padfree.builder.triton.config import protobuf, read_text

    assert load(server, stand_in) == ""
    page = server.get(f"v2/models/{stand_in.name}/config")
    shown = json_format.Parse(page, protobuf().ModelConfig(), ignore_unknown_fields=True)
    written = read_text(stand_in / "config.pbtxt")
    assert list(shown.dynamic_batching.preferred_batch_size) == [written.max_batch_size]
    shown.dynamic_batching.ClearField("preferred_batch_size")
    for group, (name, instances) in zip(shown.instance_group, [(f"{stand_in.name}_0", 2)], strict=True):
        assert (group.name, group.count) == (name, instances)
    assert differing(shown, written) == {"instance_group", "version_policy", "optimization"}  # completed with defaults
    warmed = re.findall(rf"'{stand_in.name}' instance (\S+) is running warmup sample '(.*?)'", server.log.read_text())
    names = ("one short sequence", "the fullest batch")
    assert sorted(warmed) == [(f"{stand_in.name}_0_{instance}", name) for instance in (0, 1) for name in names]


def test_shapes_of_answers(server: TritonServer, stand_in: Path) -> None:
    assert load(server, stand_in) == ""
    ids = np.array([[5, 6, 7], [8, 9, 10]], dtype=np.int32)
    tensors = {"input_ids": ids, "token_type_ids": np.zeros_like(ids)}
    for protocol in PROTOCOLS:
        answer = call(server, protocol, stand_in.name, tensors, ("hidden", "lengths", "score"))
        assert answer["hidden"][..., 0].tolist() == ids.tolist()
        assert answer["lengths"].tolist() == [[5], [8]]
        assert answer["score"].tolist() == [[5], [8]]  # the engine's [B], reshaped


@pytest.mark.parametrize(
    ("good", "bad", "message"),
    [
        ('source_input: "input_ids"', 'source_input: "tokens"', "unknown source input name 'tokens'"),
        ('target_name: "hidden"', 'target_name: "hiden"', "unknown target output name 'hiden'"),
        ("BATCH_ITEM_SHAPE_FLATTEN", "BATCH_ITEM_SHAPES", "failed to poll from model repository"),
        ("dims: 2", "dims: 0", "dimension must be integer >= 1, or -1"),
    ],
)
def test_the_server_checks_what_it_reads(
    server: TritonServer, stand_in: Path, good: str, bad: str, message: str
) -> None:
    config = stand_in / "config.pbtxt"
    text = config.read_text()
    assert good in text
    config.write_text(text.replace(good, bad))
    assert message in load(server, stand_in)

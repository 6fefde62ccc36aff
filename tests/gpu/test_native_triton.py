# SPDX-License-Identifier: Apache-2.0
"""The native backend on a GPU: a real server and real plans, every answer compared with Session's."""

from __future__ import annotations

import json
import os
import shutil
import urllib.error
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from padfree.builder import build_engine
from padfree.builder.demo.demo import DEMO_DATA
from padfree.builder.triton import ServingOptions, write_repository
from padfree.runtime import Session

from tests.support.native_triton import installed_backends, tensorrt_environment
from tests.support.triton_server import TritonServer
from tests.triton.calls import PROTOCOLS, Answer, Array, Tensors, call_all, rows, texts
from tests.triton.served_kinds import TOKENIZER

pytest.importorskip("tritonclient.grpc", reason="needs tritonclient: pip install '.[triton,clients]'")
pytestmark = [pytest.mark.gpu, pytest.mark.needs_tensorrt, pytest.mark.needs_triton]

VOCABULARY, POSITIONS = 930, 512
OUTPUTS = ("last_hidden_state", "pooler_output")
TOLERANCE = 2e-2  # half precision in other batches; the answers of other sequences differ by 0.1 and more


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("plan") / "model.plan"
    profile = {"max_batch": 32, "max_seq_len": POSITIONS, "max_tokens": 2048}
    build_engine(DEMO_DATA / "bert_tiny.onnx", file, precision="fp16", verify=False, **profile)
    return file


@pytest.fixture(scope="module")
def session(plan: Path) -> Iterator[Session]:
    with Session(plan, cuda_graphs=False) as opened:
        yield opened


@pytest.fixture(scope="module", params=["true", "false"])
def repository(
    request: pytest.FixtureRequest, plan: Path, session: Session, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A repository of the engine with CUDA graphs or without, in two instances."""
    engine = session.metadata.engine
    assert engine is not None
    options = ServingOptions("bert", "padfree", instances=2, server_tensorrt=engine.tensorrt, tokenizer=TOKENIZER)
    written = write_repository(plan, tmp_path_factory.mktemp("written") / "models", options).folder
    with (written / "bert" / "config.pbtxt").open("a", encoding="utf-8") as config:
        value = f'{{ string_value: "{request.param}" }}'
        config.write(f'parameters {{ key: "padfree_cuda_graphs" value {value} }}\n')
    assert not [path for path in written.rglob("config.pbtxt") if 'backend: "python"' in path.read_text("utf-8")]
    return written


@pytest.fixture(scope="module")
def server(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    """A running server of the repository."""
    installed, work = Path(os.environ["PADFREE_TRITON"]), tmp_path_factory.mktemp("served")
    backends = f"--backend-directory={installed_backends(installed, work / 'backends')}"
    arguments = (backends, "--model-control-mode=explicit", "--load-model=*")
    with TritonServer(installed, [repository], work, *arguments, environment=tensorrt_environment()) as running:
        yield running


def random_requests(seed: int, count: int, longest: int) -> list[list[list[int]]]:
    rng = np.random.default_rng(seed)
    return [
        [rng.integers(1, VOCABULARY, rng.integers(1, longest + 1)).tolist() for _ in range(rng.integers(1, 6))]
        for _ in range(count)
    ]


def assert_right(
    answer: Answer, sequences: Sequence[Sequence[int]], session: Session, types: Sequence[Sequence[int]] | None = None
) -> None:
    assert isinstance(answer, dict), answer
    inputs: Mapping[str, Sequence[Array]] = {"input_ids": [np.array(ids, np.int32) for ids in sequences]}
    if types is not None:
        inputs = {**inputs, "token_type_ids": [np.array(row, np.int32) for row in types]}
    expected = session.run(inputs)
    found: dict[str, Array] = {name: values.astype(np.float32) for name, values in answer.items()}
    np.testing.assert_allclose(found["pooler_output"], np.stack(expected["pooler_output"]), atol=TOLERANCE)
    for row, states in zip(found["last_hidden_state"], expected["last_hidden_state"], strict=True):
        np.testing.assert_allclose(row[: len(states)], states, atol=TOLERANCE)
        assert not row[len(states) :].any()


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("longest", [8, 60, POSITIONS])
def test_every_answer(server: TritonServer, session: Session, protocol: str, longest: int) -> None:
    requests = random_requests(longest, 300, longest)
    answers = call_all(server, protocol, "bert", [rows(sequences) for sequences in requests], OUTPUTS)
    for answer, sequences in zip(answers, requests, strict=True):
        assert_right(answer, sequences, session)


@pytest.mark.parametrize("model", ["bert", "bert_text"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_answer_to_texts_and_pairs(server: TritonServer, session: Session, protocol: str, model: str) -> None:
    """Texts to the encoder itself and through the ensemble, with texts that are refused between them."""
    from tokenizers import Tokenizer

    lines = (DEMO_DATA / "texts.txt").read_text(encoding="utf-8").splitlines()
    tokenizer = Tokenizer.from_file(str(TOKENIZER))
    tokenizer.enable_truncation(POSITIONS)
    given: list[list[str | tuple[str, str]]] = [[line, " ".join(lines[:at])] for at, line in enumerate(lines)]
    given += [[(line, lines[-at])] for at, line in enumerate(lines)]
    requests: list[Tensors] = [
        {"text": texts(*(text if isinstance(text, str) else text[0] for text in request))} for request in given
    ]
    for at, request in enumerate(given):
        if isinstance(request[0], tuple):
            requests[at] = {**requests[at], "text_pair": texts(request[0][1])}
    bad: Tensors = {"text": texts("fine", b"\xff")}
    sent = [tensors for request in requests for tensors in (request, bad)]
    answers = call_all(server, protocol, model, sent, (*OUTPUTS, "seq_lens", "truncated"))
    for answer in answers[1::2]:
        assert "'text' 1 is not UTF-8" in str(answer)
    for answer, request in zip(answers[::2], given, strict=True):
        encodings = tokenizer.encode_batch(request)
        assert isinstance(answer, dict), answer
        assert answer["seq_lens"].tolist() == [[len(encoding.ids)] for encoding in encodings]
        assert answer["truncated"].tolist() == [[bool(encoding.overflowing)] for encoding in encodings]
        assert_right(answer, [item.ids for item in encodings], session, [item.type_ids for item in encodings])


def test_bad_requests_fail_alone(server: TritonServer, session: Session) -> None:
    requests = random_requests(1, 50, 40)
    wrong = {"input_ids": np.array([[5, VOCABULARY]], np.int32)}
    sent = [tensors for sequences in requests for tensors in (rows(sequences), wrong)]
    answers = call_all(server, "grpc", "bert", sent, OUTPUTS)
    for answer in answers[1::2]:
        assert isinstance(answer, Exception)
        assert f"allowed 0..{VOCABULARY - 1}" in str(answer)
    for answer, sequences in zip(answers[::2], requests, strict=True):
        assert_right(answer, sequences, session)


def test_tensors_in_shared_gpu_memory(server: TritonServer, session: Session) -> None:
    import tritonclient.grpc as triton

    shared = pytest.importorskip(
        "tritonclient.utils.cuda_shared_memory", reason="needs cuda-python: pip install 'tritonclient[cuda]'"
    )
    ids = np.array([[5, 6, 7, 8], [9, 10, 11, 0]], np.int32)
    pooled = session.run([[5]])["pooler_output"][0]
    hidden_size, dtype = pooled.size, pooled.dtype
    inputs = [triton.InferInput("input_ids", [2, 4], "INT32"), triton.InferInput("seq_lens", [2, 1], "INT32")]
    inputs[1].set_data_from_numpy(np.array([[4], [3]], np.int32))
    row_bytes = hidden_size * dtype.itemsize
    sizes = {"ids": ids.nbytes, "pooled": 2 * row_bytes, "hidden": 2 * 4 * row_bytes}
    client = triton.InferenceServerClient(server.url("grpc"))
    regions = {name: shared.create_shared_memory_region(name, size, 0) for name, size in sizes.items()}
    try:
        shared.set_shared_memory_region(regions["ids"], [ids])
        for name, region in regions.items():
            client.register_cuda_shared_memory(name, shared.get_raw_handle(region), 0, sizes[name])
        inputs[0].set_shared_memory("ids", ids.nbytes)
        outputs = [triton.InferRequestedOutput("pooler_output"), triton.InferRequestedOutput("last_hidden_state")]
        outputs[0].set_shared_memory("pooled", sizes["pooled"])
        outputs[1].set_shared_memory("hidden", sizes["hidden"])
        client.infer("bert", inputs, outputs=outputs)
        answer: Answer = {
            "pooler_output": shared.get_contents_as_numpy(regions["pooled"], dtype.type, [2, hidden_size]),
            "last_hidden_state": shared.get_contents_as_numpy(regions["hidden"], dtype.type, [2, 4, hidden_size]),
        }
        assert_right(answer, [[5, 6, 7, 8], [9, 10, 11]], session)
    finally:
        client.unregister_cuda_shared_memory()
        for region in regions.values():
            shared.destroy_shared_memory_region(region)


def test_unload_frees_the_gpu_s_memory(server: TritonServer) -> None:
    from padfree.runtime.gpu.cuda import free_bytes

    requests = random_requests(2, 100, 60)
    free = []
    for _ in range(4):
        server.post("v2/repository/models/bert/unload")
        server.post("v2/repository/models/bert/load")
        for answer in call_all(server, "grpc", "bert", [rows(sequences) for sequences in requests], OUTPUTS):
            assert isinstance(answer, dict), answer
        free.append(free_bytes())
    assert free[-1] >= free[0] - (64 << 20)  # other processes may take this much meanwhile


def test_another_tensorrt_or_gpu_is_refused(server: TritonServer, repository: Path, plan: Path) -> None:
    """Loads files of a plan that was built elsewhere; the server refuses the model, and stays up."""
    for name, field, value, message in (
        ("old_tensorrt", "tensorrt", "10.0.0", "the plan was built by TensorRT 10.0.0, and the server has"),
        ("other_chip", "compute_capability", "8.0", "the plan was built for compute capability 8.0"),
        ("other_gpu", "gpu_name", "NVIDIA Elsewhere", "the plan was built on NVIDIA Elsewhere, GPU 0"),
    ):
        version = repository / name / "1"
        version.mkdir(parents=True)
        shutil.copy(plan, version / "model.plan")
        described = json.loads(plan.with_name("model.plan.json").read_text("utf-8"))
        described["engine"][field] = value
        (version / "model.plan.json").write_text(json.dumps(described), encoding="utf-8")
        (repository / name / "config.pbtxt").write_text('backend: "padfree"\n', encoding="utf-8")
        with pytest.raises(urllib.error.HTTPError) as refused:
            server.post(f"v2/repository/models/{name}/load")
        assert message in refused.value.read().decode()
        shutil.rmtree(repository / name)

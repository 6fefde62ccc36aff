# SPDX-License-Identifier: Apache-2.0
"""Plans: metadata beside them, whole or damaged files, other machines; all without TensorRT or a GPU."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from padfree.contract.installation import install_command
from padfree.runtime import EngineInfo, Profile, Session, SessionError
from padfree.runtime.gpu.device import Device, check_compute_capability
from padfree.runtime.gpu.trt import check_engine, short_version
from padfree.runtime.plan_files import open_plan, parse_metadata
from padfree.runtime.request import read_packed, read_request

PLAN = b"plan" * 100
PlanWriter = Callable[..., Path]


@pytest.fixture
def plan(packed_metadata: dict[str, Any], tmp_path: Path) -> PlanWriter:
    def write(**changes: Any) -> Path:
        path = tmp_path / "model.plan"
        path.write_bytes(PLAN)
        engine = {
            "tensorrt": "10.6.0",
            "gpu_name": "NVIDIA H200",
            "compute_capability": "9.0",
            "profile": {"min_tokens": 1, "opt_tokens": 20, "max_tokens": 24, "max_batch": 3, "max_seq_len": 12},
            "plan_bytes": len(PLAN),
            "plan_sha256": hashlib.sha256(PLAN).hexdigest(),
            "plugin_layers": {"PadfreeAttention": 1},
        }
        (tmp_path / "model.plan.json").write_text(json.dumps({**packed_metadata, "engine": {**engine, **changes}}))
        return path

    return write


def engine_info(**changes: Any) -> EngineInfo:
    values: dict[str, Any] = {
        "tensorrt": "10.6.0",
        "gpu_name": "NVIDIA H200",
        "compute_capability": "9.0",
        "profile": Profile(1, 1, 1, 1, 1),
        "plan_bytes": 0,
        "plan_sha256": "0" * 64,
        "plugin_layers": {},
    }
    return EngineInfo(**{**values, **changes})


def test_metadata_is_read(plan: PlanWriter) -> None:
    metadata = open_plan(plan())
    assert metadata.engine is not None
    assert metadata.engine.profile == Profile(1, 20, 24, 3, 12)
    assert metadata.interface == "packed"


def test_missing_plan(tmp_path: Path) -> None:
    with pytest.raises(SessionError, match=r"model\.plan: no such plan; build one with: padfree build"):
        Session(tmp_path / "model.plan")


def test_a_folder_is_no_plan(tmp_path: Path) -> None:
    (tmp_path / "small").mkdir()
    with pytest.raises(SessionError, match=r"small: is a folder, .* build it: padfree build .*small -o small\.plan"):
        Session(tmp_path / "small")


def test_missing_metadata(plan: PlanWriter) -> None:
    path = plan()
    path.with_name("model.plan.json").unlink()
    with pytest.raises(SessionError, match=r"its metadata model\.plan\.json is missing; copy it along with the plan"):
        Session(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("[]", "is a list, not an object"),
        ("{}", "metadata format None, this version reads format 1"),
    ],
)
def test_damaged_metadata(plan: PlanWriter, text: str, message: str) -> None:
    path = plan()
    path.with_name("model.plan.json").write_text(text)
    with pytest.raises(SessionError, match=message):
        Session(path)


def test_metadata_of_a_model_is_not_that_of_a_plan(plan: PlanWriter, packed_metadata: dict[str, Any]) -> None:
    path = plan()
    path.with_name("model.plan.json").write_text(json.dumps(packed_metadata))
    with pytest.raises(SessionError, match="holds no 'engine' entry"):
        Session(path)


@pytest.mark.parametrize("has_metadata", [True, False])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 400\n", "fetch it: git lfs pull"),
        (b"GGUF\x03\x00\x00\x00", "is a GGUF file, which has weights without the model's graph; give the"),
        (b"<!DOCTYPE html><html>not found</html>", "is a web page or XML, not a model; download it again"),
        (b"", "is empty; export, build or copy it again"),
    ],
)
def test_other_kinds_of_files_are_told(plan: PlanWriter, content: bytes, message: str, has_metadata: bool) -> None:
    path = plan()
    path.write_bytes(content)
    if not has_metadata:
        path.with_name("model.plan.json").unlink()
    with pytest.raises(SessionError, match=message):
        Session(path)


def test_advice_on_missing_metadata_overwrites_no_other_file(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(PLAN)
    with pytest.raises(SessionError, match=r"padfree build model\.onnx -o .*model\.plan$"):
        Session(tmp_path / "model.bin")


def test_truncated_plan(plan: PlanWriter) -> None:
    path = plan()
    path.write_bytes(PLAN[:-1])
    with pytest.raises(SessionError, match="399 bytes, its metadata says 400: the plan is truncated"):
        Session(path)


def test_changed_plan(plan: PlanWriter) -> None:
    path = plan()
    path.write_bytes(PLAN[:-1] + b"x")
    with pytest.raises(SessionError, match=r"SHA-256 [0-9a-f]{16}\.\.\., its metadata says [0-9a-f]{16}"):
        Session(path)


@pytest.mark.skipif(importlib.util.find_spec("tensorrt") is not None, reason="TensorRT is installed")
def test_no_tensorrt(plan: PlanWriter) -> None:
    with pytest.raises(SessionError, match=rf"TensorRT is not installed.*{re.escape(install_command('trt'))}"):
        Session(plan())


@pytest.mark.parametrize("version", ["10.6.0", "10.6.0.26"])
def test_a_plan_from_this_machine_passes(version: str) -> None:
    gpu = Device(0, "NVIDIA H200", 9, 0)
    check_engine(engine_info(), "a.plan", version=version, device=gpu, allow_other_gpu=False)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tensorrt": "10.15.1"}, "built by TensorRT 10.15.1, this machine has 10.6.0"),
        (
            {"compute_capability": "8.0", "gpu_name": "NVIDIA A100"},
            "built for compute capability 8.0 (NVIDIA A100), GPU 0 (NVIDIA H200) has 9.0; build the plan again",
        ),
        ({"gpu_name": "NVIDIA H100"}, "built on NVIDIA H100, GPU 0 is NVIDIA H200; build the plan again"),
    ],
)
def test_a_plan_from_elsewhere_is_refused(changes: dict[str, Any], message: str) -> None:
    gpu = Device(0, "NVIDIA H200", 9, 0)
    with pytest.raises(SessionError) as caught:
        check_engine(engine_info(**changes), "a.plan", version="10.6.0.26", device=gpu, allow_other_gpu=False)
    assert message in str(caught.value)


def test_another_gpu_of_the_same_architecture_can_be_allowed() -> None:
    gpu = Device(0, "NVIDIA H200", 9, 0)
    h100 = engine_info(gpu_name="NVIDIA H100")
    check_engine(h100, "a.plan", version="10.6.0", device=gpu, allow_other_gpu=True)
    a100 = engine_info(compute_capability="8.0")
    with pytest.raises(SessionError, match="compute capability"):
        check_engine(a100, "a.plan", version="10.6.0", device=gpu, allow_other_gpu=True)


def test_old_gpus_are_refused() -> None:
    check_compute_capability(Device(0, "NVIDIA A100", 8, 0))
    with pytest.raises(SessionError, match=r"compute capability 7\.5, padfree needs 8\.0"):
        check_compute_capability(Device(0, "Tesla T4", 7, 5))


@pytest.mark.parametrize(("version", "short"), [("10.15.1.29", "10.15.1"), ("10.6.0", "10.6.0")])
def test_short_versions(version: str, short: str) -> None:
    assert short_version(version) == short


def test_a_sequence_beyond_the_profile_is_refused(plan: PlanWriter) -> None:
    metadata = open_plan(plan())
    read_request([[1] * 12], metadata)
    for read in (lambda ids: read_request([ids], metadata), lambda ids: read_packed(ids, [len(ids)], metadata)):
        with pytest.raises(SessionError, match=r"13 tokens, the engine's profile takes 12.*--max-seq-len 13"):
            read([1] * 13)


class RecordingBackend:
    """A stand-in for an engine: computes the packed model's outputs and records its inputs."""

    def __init__(self) -> None:
        self.runs: list[list[int]] = []
        self.contexts, self.under_way, self.most_under_way = 2, 0, 0
        self.fails_at: int | None = None

    def run(self, feeds: dict[str, Any], **_options: Any) -> dict[str, Any]:
        import numpy as np

        self.runs.append(feeds["seq_lens"].tolist())
        pairs = np.stack([feeds["input_ids"], feeds["token_type_ids"]], axis=1).astype(np.float32)
        return {"hidden": pairs, "lengths": feeds["seq_lens"][:, None].astype(np.float32)}

    def start(self, feeds: dict[str, Any], *, patient: bool = True, **options: Any) -> Any:
        """Starts a run, unless all contexts are in use and the caller is not patient."""
        if self.under_way == self.contexts and not patient:
            return None
        assert self.under_way < self.contexts, "waits for a context while it holds one: for ever"
        outputs = self.run(feeds, **options)
        if len(self.runs) == self.fails_at:
            raise SessionError(f"run {self.fails_at} fails")
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        return SimpleNamespace(outputs=outputs, wait=self._end)

    def _end(self) -> None:
        self.under_way -= 1

    def close(self) -> None:
        """Does nothing, as there is nothing to free."""


def plan_session(path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Session, RecordingBackend]:
    backend = RecordingBackend()
    module = SimpleNamespace(TensorRTBackend=lambda *_args, **_options: backend)
    monkeypatch.setitem(sys.modules, "padfree.runtime.gpu.tensorrt_backend", module)
    monkeypatch.setattr("padfree.runtime.session.import_tensorrt", lambda: None)
    return Session(path), backend


def test_requests_beyond_the_profile_become_several_runs(plan: PlanWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    session, backend = plan_session(plan(), monkeypatch)
    lengths = [12, 12, 1, 0, 0, 5, 12, 8]
    results = session.run([[at] * length for at, length in enumerate(lengths)])
    assert backend.runs == [[12, 12], [1, 0, 0], [5, 12], [8]]
    assert [row[:, 0].tolist() for row in results["hidden"]] == [[at] * length for at, length in enumerate(lengths)]
    assert backend.under_way == 0


@pytest.mark.parametrize("contexts", [1, 2])
def test_runs_of_a_request_overlap_where_contexts_are_free(
    plan: PlanWriter, monkeypatch: pytest.MonkeyPatch, contexts: int
) -> None:
    session, backend = plan_session(plan(), monkeypatch)
    backend.contexts = contexts
    results = session.run([[at] * 12 for at in range(6)])
    assert [row[0, 0] for row in results["hidden"]] == list(range(6))
    assert (backend.most_under_way, backend.under_way) == (contexts, 0)


def test_a_run_that_fails_leaves_none_under_way(plan: PlanWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    session, backend = plan_session(plan(), monkeypatch)
    backend.fails_at = 3
    with pytest.raises(SessionError, match="run 3 fails"):
        session.run([[1] * 12] * 8)
    assert (len(backend.runs), backend.under_way) == (3, 0)


def test_run_packed_beyond_the_profile_is_refused(plan: PlanWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    session, backend = plan_session(plan(), monkeypatch)
    with pytest.raises(SessionError, match=r"25 tokens in one run, the engine's profile takes 24.*--max-tokens 25"):
        session.run_packed([1] * 25, [12, 12], filler_tokens=1)
    with pytest.raises(SessionError, match=r"4 sequences in one run, the engine's profile takes 3.*--max-batch 4"):
        session.run_packed([1] * 4, [1, 1, 1, 1])
    assert backend.runs == []


def test_max_seqlen_is_a_shape(packed_metadata: dict[str, Any]) -> None:
    from padfree.runtime.feeds import packed_feeds

    shape_input = {"name": "max_seqlen", "role": "max_seqlen", "limit": None, "dtype": "int32"}
    raw = {**packed_metadata, "inputs": [*packed_metadata["inputs"], shape_input]}
    metadata = parse_metadata(raw, "test")
    for lengths, expected in (([2, 3], 3), ([0], 1)):
        feeds = packed_feeds(read_request([[1] * length for length in lengths], metadata), metadata)
        assert feeds["max_seqlen"].shape == (expected,)

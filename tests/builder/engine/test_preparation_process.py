# SPDX-License-Identifier: Apache-2.0
"""Rewriting in another process: the same models, the same errors, and nothing left behind."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
from google.protobuf.message import EncodeError  # type: ignore[import-untyped]
from padfree.builder import BuildError
from padfree.builder.demo.demo import DEMO_DATA
from padfree.builder.engine import large_files, network, preparation_process
from padfree.builder.engine.gpu_memory import weight_bytes
from padfree.builder.engine.linear import apply_linear, linear_of
from padfree.builder.engine.lowering import for_parser
from padfree.builder.engine.network import serialize
from padfree.builder.engine.options import BuildOptions
from padfree.builder.engine.preparation_process import preparing
from padfree.builder.engine.profile import ProfileOptions
from padfree.builder.folders.head import HeadOptions
from padfree.builder.folders.source import opened
from padfree.contract import phases
from padfree.onnx_tools import RewriteError, rewrite_model
from padfree.onnx_tools.files.model import Model
from padfree.onnx_tools.files.model_file import open_model
from padfree.runtime.gpu.device import Device

from benchmarks.engine.folder_memory import Shape, resident
from benchmarks.engine.folder_memory import write_folder as write_memory_folder
from tests.support import tiny_folders
from tests.support.folders import write_folder
from tests.support.preparation import prepare_model

ModelWriter = Callable[..., Path]

EXPORTED = DEMO_DATA / "bert_tiny.onnx"
MAX_SEQ_LEN = 16
OPTIONS = BuildOptions(verify=False, profile=ProfileOptions(max_seq_len=MAX_SEQ_LEN))

DECODER = Shape(
    {
        "model_type": "qwen3", "vocab_size": 2000, "hidden_size": 512, "num_attention_heads": 4,
        "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 1536,
    },
    "bf16",
    "lasttoken",
)  # fmt: skip

MOST_SETTLING_S = 60.0
MOST_OWN_BYTES = 200_000_000
"""Of the process that prepares, once a small model is handed over: 63 MB; 487 MB without trim_heap."""


def no_device() -> None:
    """There is no GPU."""


def prepared_model(
    model: Path | onnx.ModelProto, device: Callable[[], Device | None] = no_device, **options: Any
) -> onnx.ModelProto:
    """The model, whose weights are either in it or in the bytes beside it."""
    with preparing(model, replace(OPTIONS, **options), device) as wait:
        result = wait()
    if result.content is None:
        return result.model
    whole = onnx.load_model_from_string(bytes(result.content))
    assert not result.model.graph.initializer
    del (bare := onnx.load_model_from_string(bytes(result.content))).graph.initializer[:]
    assert result.model == bare
    return whole


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[bytes]]:
    """The processes that are started."""
    started: list[subprocess.Popen[bytes]] = []

    class RecordedChild(subprocess.Popen):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            started.append(self)

    monkeypatch.setattr(preparation_process.subprocess, "Popen", RecordedChild)
    return started


def test_a_file_is_rewritten_by_another_process(children: list[subprocess.Popen[bytes]]) -> None:
    assert prepared_model(EXPORTED, interface="padded") == prepare_model(
        EXPORTED, replace(OPTIONS, interface="padded"), no_device
    )
    assert [child.returncode for child in children] == [0]


def test_a_model_is_rewritten_here(children: list[subprocess.Popen[bytes]]) -> None:
    model = onnx.load(str(EXPORTED))
    assert prepared_model(model) == prepare_model(model, OPTIONS, no_device)
    assert not children


@pytest.mark.slow
@pytest.mark.parametrize("norms", ["folded", "separate"])
def test_gemms_are_chosen_where_the_model_is_rewritten(children: list[subprocess.Popen[bytes]], norms: str) -> None:
    plain = rewrite_model(open_model(EXPORTED), replace(OPTIONS, precision="fp16").rewriting).model
    result = prepared_model(EXPORTED, lambda: Device(0, "NVIDIA H200", 9, 0), precision="fp16", norms=norms)
    assert result == for_parser(apply_linear("padfree", plain, norms=norms), MAX_SEQ_LEN).whole()
    assert linear_of(result) == "padfree"
    assert len(children) == 1
    elsewhere = Device(0, "NVIDIA A100", 8, 0)
    for device in (elsewhere, None):
        actual = prepared_model(EXPORTED, lambda device=device: device, precision="fp16", norms=norms)
        assert actual == for_parser(plain, MAX_SEQ_LEN).whole()
    with pytest.raises(BuildError, match="--linear padfree: PadfreeLinear computes in fp16 or bf16, the model is fp32"):
        prepared_model(EXPORTED, lambda: elsewhere, precision="fp32", linear="padfree", norms=norms)


@pytest.mark.slow
def test_a_profile_that_does_not_fit_is_named_by_the_process(children: list[subprocess.Popen[bytes]]) -> None:
    with pytest.raises(BuildError, match="profile max 600 > model limit"):
        prepared_model(EXPORTED, profile=ProfileOptions(max_seq_len=600))
    assert len(children) == 1


@pytest.mark.slow
def test_a_model_too_large_for_a_message_is_handed_on_in_a_file(
    monkeypatch: pytest.MonkeyPatch, children: list[subprocess.Popen[bytes]]
) -> None:
    refusing = "module.serialize = lambda *_, **__: None\nmodule.serve(sys.argv[1], answer)"
    named, imported = "engine.preparation_process import serve", "engine import preparation_process as module"
    child = preparation_process._CHILD.replace(named, imported)
    monkeypatch.setattr(preparation_process, "_CHILD", child.replace("serve(sys.argv[1], answer)", refusing))
    with preparing(EXPORTED, OPTIONS, no_device) as wait:
        result = wait()
        assert result.content is None
        assert result.file is not None
        assert not result.model.graph.initializer
        assert onnx.load_model(str(result.file)) == prepare_model(EXPORTED, OPTIONS, no_device)
        assert weight_bytes(result.model, None, result.file) >= result.file.stat().st_size
        result.drop()
        assert not result.file.exists()
    assert not result.file.parent.parent.exists()
    assert [child.returncode for child in children] == [preparation_process._IN_FILE]


def test_a_full_disk_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(large_files, "write_model", full)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(BuildError, match=r"GB cannot be written there \(No space left on device\).*set TMPDIR"):
        large_files.write_aside(open_model(EXPORTED))
    assert list(tmp_path.iterdir()) == []


def sizes_of_files_in_memory() -> list[int]:
    """The sizes of the files in memory that this process has open."""
    sizes = []
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if "memfd:padfree" in str(link.readlink()):
                sizes.append(link.stat().st_size)
    return sizes


@pytest.mark.slow
def test_memory_is_given_back_once_a_model_is_parsed() -> None:
    with preparing(EXPORTED, OPTIONS, no_device) as wait:
        result = wait()
        assert result.content is not None
        assert max(sizes_of_files_in_memory()) >= result.content.nbytes
        result.drop()
        assert max(sizes_of_files_in_memory()) == 0


@pytest.mark.slow
def test_answers_wait_until_the_model_is_parsed(children: list[subprocess.Popen[bytes]]) -> None:
    """onnxruntime's memory comes after that of the model's bytes."""
    with preparing(EXPORTED, replace(OPTIONS, verify=True), no_device) as wait:
        result = wait()
        assert result.reference is not None
        with pytest.raises(subprocess.TimeoutExpired):
            children[0].wait(3)
        result.drop()
        assert result.reference().answers
    assert [child.returncode for child in children] == [0]


def settled_bytes(pid: int) -> int:
    """The memory of a process's own once it stays as it is: it says that it has written before it frees memory."""
    until, found = time.monotonic() + MOST_SETTLING_S, [resident(pid)[0]]
    while found[-1] >= MOST_OWN_BYTES or len(found) < 20 or min(found[-20:]) < max(found[-20:]):
        if time.monotonic() > until:
            break
        time.sleep(0.1)
        found.append(resident(pid)[0])
    return found[-1]


@pytest.mark.slow
def test_weights_that_are_handed_over_are_freed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, children: list[subprocess.Popen[bytes]]
) -> None:
    """Norms folded into GEMMs give each layer new weights, as gates and rotations do."""
    defers = "graph.LARGE_MODEL_BYTES = parts.LEAST_PART_BYTES = parts.KEPT_BYTES = 0; from padfree.builder"
    imports = "from padfree.builder.definitions import graph; from padfree.onnx_tools.files import staged_session"
    child = preparation_process._CHILD.replace("from padfree.builder", f"{imports} as parts; {defers}")
    monkeypatch.setattr(preparation_process, "_CHILD", child)
    options = replace(OPTIONS, verify=True, precision="bf16")
    own_bytes, weights = list[int](), list[int]()
    for layers in (1, 12):
        folder = tmp_path / str(layers)
        folder.mkdir()
        write_memory_folder(replace(DECODER, config={**DECODER.config, "num_hidden_layers": layers}), folder)
        with (
            opened(folder, HeadOptions(("lasttoken",), True), lazily=True) as source,
            preparing(source.unmade or folder, options, lambda: Device(0, "NVIDIA H200", 9, 0)) as wait,
        ):
            content = wait().content
            assert content is not None
            own_bytes.append(settled_bytes(children[-1].pid))
            weights.append(content.nbytes)
    assert own_bytes[1] - own_bytes[0] < (weights[1] - weights[0]) // 3
    assert own_bytes[0] < MOST_OWN_BYTES


def test_bytes_are_those_of_the_model() -> None:
    with preparing(EXPORTED, OPTIONS, no_device) as wait:
        content = wait().content
    assert content is not None
    model = prepare_model(EXPORTED, OPTIONS, no_device)
    assert onnx.load_model_from_string(bytes(content)) == model
    pieces = serialize(Model(model))
    assert pieces is not None
    assert content == b"".join(pieces)


@pytest.mark.parametrize("error", [EncodeError, ValueError])
def test_a_weight_beyond_protobufs_limit_is_none_to_hand_on(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise error("too large")

    monkeypatch.setattr(network, "bytes_in_pieces", refuse)
    assert serialize(Model(onnx.ModelProto())) is None


def test_errors_are_those_of_rewriting(tmp_path: Path, packed_model: ModelWriter) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no model")
    with pytest.raises(RewriteError, match=r"'.*broken\.onnx' \(8 bytes\) is not an ONNX model"):
        prepared_model(broken)
    with pytest.raises(RewriteError, match=r"does not exist; give the path of an \.onnx file"):
        prepared_model(tmp_path / "missing.onnx")
    with pytest.raises(BuildError, match="fp16 was asked for; leave --precision out"):
        prepared_model(packed_model(), precision="fp16")


def test_a_process_that_dies_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparation_process, "_CHILD", "import os; os.kill(os.getpid(), 9)")
    with pytest.raises(BuildError, match=r"bert_tiny\.onnx' ended with code -9 and without an answer; where"):
        prepared_model(EXPORTED)


@pytest.mark.slow
def test_prints_of_libraries_are_no_part_of_the_answer(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    said = "os.write(1, b'hello from a library'); from padfree.builder"
    monkeypatch.setattr(preparation_process, "_CHILD", preparation_process._CHILD.replace("from padfree.builder", said))
    assert prepared_model(EXPORTED) == prepare_model(EXPORTED, OPTIONS, no_device)
    assert capfd.readouterr().err == "hello from a library"


def test_the_process_ends_with_the_context(children: list[subprocess.Popen[bytes]]) -> None:
    with pytest.raises(KeyboardInterrupt), preparing(EXPORTED, OPTIONS, no_device):
        raise KeyboardInterrupt
    assert [child.returncode for child in children] == [-9]


def test_temporary_files_of_the_process_end_with_the_context(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Models beyond 2 GB lie in files while they are checked, and a process that is killed does not remove them."""
    said = tmp_path / "said"
    child = f"""
import os, tempfile, time
folder = tempfile.mkdtemp()
open(os.path.join(folder, "weights"), "w").close()
with open({str(said)!r} + "-", "w") as file:
    file.write(folder)
os.rename({str(said)!r} + "-", {str(said)!r})
time.sleep(60)
"""
    monkeypatch.setattr(preparation_process, "_CHILD", child)
    with preparing(EXPORTED, OPTIONS, no_device):
        deadline = time.monotonic() + 30
        while not said.exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert (Path(said.read_text()) / "weights").exists()
    assert not Path(said.read_text()).exists()


@pytest.mark.slow
def test_it_works_without_files_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(preparation_process.os, "memfd_create")
    assert prepared_model(EXPORTED) == prepare_model(EXPORTED, OPTIONS, no_device)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_shows_nothing_of_the_other_process(tmp_path: Path, number: signal.Signals) -> None:
    """A terminal sends the signal to both processes; only one prints, and the other has ended by the time it ends."""
    code = """
import pathlib, signal, subprocess, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs the tests may ignore it
from padfree.builder import cli
from padfree.builder.engine import preparation_process
from padfree.builder.engine.options import BuildOptions

class Recorded(subprocess.Popen):
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.children.append(self.pid)
    children = []

def device():
    time.sleep(1)  # the other process is at work
    print(*Recorded.children, flush=True)
    try:
        time.sleep(60)
    except BaseException:
        time.sleep(1)  # as TensorRT, which hears of it when it is done with something
        raise

def build(arguments):
    with preparation_process.preparing(arguments.model[0], BuildOptions(verify=False), device):
        raise AssertionError("not stopped")

preparation_process.subprocess.Popen = Recorded
cli.build.run = build
sys.exit(cli.main(["build", *sys.argv[1:]]))
"""
    command = [sys.executable, "-c", code, str(EXPORTED), "-o", str(tmp_path / "model.plan")]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        os.killpg(process.pid, number)
        _, errors = process.communicate(timeout=30)
    assert "Traceback" not in errors
    assert process.returncode == 128 + number
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


@pytest.mark.slow
def test_a_folder_is_made_in_the_other_process(tmp_path: Path, children: list[subprocess.Popen[bytes]]) -> None:
    folder = write_folder(tmp_path / "small", modules=[("Pooling", {"pooling_mode": "mean"})])
    options = replace(OPTIONS, verify=True)
    with opened(folder, lazily=True) as source:
        assert source.unmade is not None
        assert not source.path.exists()
        with preparing(source.unmade, options, no_device) as wait:
            result = wait()
    assert len(children) == 1
    assert result.content is not None
    with opened(folder) as source:
        assert onnx.load_model_from_string(bytes(result.content)) == prepare_model(source.path, options, no_device)
    assert list(result.seconds) == [phases.IMPORTS, phases.REWRITING, phases.VERIFYING, phases.HALVING]
    assert all(0 <= seconds < 60 for seconds in result.seconds.values())
    assert result.seconds[phases.IMPORTS] > 0


@pytest.mark.needs_torch
@pytest.mark.slow
def test_an_export_is_in_the_account(tmp_path: Path) -> None:
    from transformers import BertConfig, BertModel

    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
    BertModel(BertConfig(vocab_size=100, **sizes)).save_pretrained(tmp_path)
    with opened(tmp_path, lazily=True) as source, preparing(source.unmade, OPTIONS, no_device) as wait:
        result = wait()
    assert list(result.seconds) == [phases.IMPORTS, phases.EXPORTING, phases.REWRITING, phases.HALVING]
    assert all(seconds > 0 for seconds in result.seconds.values())


@pytest.mark.parametrize("is_large", [True, False])
def test_memory_of_large_models_is_given_back(is_large: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process keeps freed memory, which is faster, except where large weights come and go."""
    folder = tiny_folders.write_reference(tiny_folders.read("bert"), tmp_path / "model")
    monkeypatch.setattr(preparation_process, "LARGE_MODEL_BYTES", 0 if is_large else 1 << 30)
    with opened(folder, lazily=True) as source:
        assert source.unmade is not None
        assert preparation_process._is_large(source.unmade) == is_large
    assert not preparation_process._is_large(EXPORTED)
    monkeypatch.setattr(subprocess, "Popen", lambda *_, env, **__: env)
    started: Any = preparation_process._start([], sys.stdout.buffer, str(tmp_path), (), is_large=is_large)
    assert ("MALLOC_MMAP_MAX_" in started) == (not is_large)
    assert started["TMPDIR"] == str(tmp_path)

# SPDX-License-Identifier: Apache-2.0
"""Prepares a model's file (preparation.py) in a process of its own, while this one starts TensorRT.

Creating TensorRT's builder takes seconds and holds Python's lock; rewriting BERT-base takes as long. While TensorRT
builds the engine, the process computes the answers that it is checked with (engine_check/reference.py).
"""

from __future__ import annotations

import base64
import contextlib
import gc
import json
import mmap
import os
import pickle
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import IO, NoReturn, TypeAlias, TypeGuard

import onnx
from padfree.contract.machine import trim_heap
from padfree.contract.phases import IMPORTS, Phases
from padfree.onnx_tools.files import LARGE_MODEL_BYTES, Model, Storage, open_model, without_initializers
from padfree.runtime import parse_metadata
from padfree.runtime.gpu import Device
from rich.progress import Progress

from ..engine_check.reference import Reference, compute_reference
from ..errors import BuildError
from ..folders.folder_model import FolderModel
from ..folders.source import Say
from .large_files import remove_model, write_aside
from .network import serialize
from .options import BuildOptions
from .preparation import AskDevice, metadata_of, prepare
from .preparation_messages import Teller, relay, to_stderr
from .profile import choose_profile
from .progress import watcher_of

_CHILD = """
import os, sys
answer = os.dup(1)
os.dup2(2, 1)  # what libraries print
sys.path[:] = sys.argv[2:]
from padfree.builder.engine.preparation_process import serve
serve(sys.argv[1], answer)
"""
ModelSource: TypeAlias = str | Path | onnx.ModelProto | FolderModel
_FAILURE, _IN_FILE = 3, 4
"""Exit codes of that process: its answer is an error; the model is too large for a message and lies in a file."""
_NICENESS = 5
"""The niceness of that process while TensorRT builds, because the user waits for TensorRT."""
_LENGTH = struct.Struct("<q")
_KEEPS_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 36)}
"""Makes glibc reuse freed memory instead of giving it back, as new memory costs a page fault every 4 KB. Not for large
models: of their weights, which come and go, it would keep more than the model takes."""
_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1"}
"""Makes numpy multiply without threads, which would wait for each other longer than the few GEMMs take."""


@dataclass(frozen=True)
class PreparedModel:
    """A model for TensorRT's parser. Where `content` holds all of its bytes, or `file` it, `model` is without weights.

    `seconds` has the times of phases. `reference` waits for the answers that the engine must give, or raises the error;
    None where nothing is verified. `drop` frees the memory of `content`, or removes `file`, once it is parsed.
    """

    model: onnx.ModelProto
    seconds: Mapping[str, float]
    content: memoryview | None = None
    reference: Callable[[], Reference] | None = None
    file: Path | None = None
    drop: Callable[[], object] = lambda: None


@contextlib.contextmanager
def preparing(
    model: ModelSource,
    options: BuildOptions,
    device: AskDevice,
    *,
    progress: Progress | None = None,
    say: Say = to_stderr,
) -> Iterator[Callable[[], PreparedModel]]:
    """Begins `prepare`, and gives a function that waits for what it returns or raises.

    Existing files and folders are prepared by another process, which ends with the context, and the reference with it.
    `progress` shows its stages, `say` gets what the user should know.
    """
    watcher = watcher_of(progress)

    def prepare_here() -> PreparedModel:
        phases = Phases(watcher)
        source = open_source(model, Storage.MEMORY, phases, say)
        preparation = prepare(source, options, device, phases=phases)
        whole = preparation.model.whole()
        preparation.model.weights.check_files()
        if preparation.exact is None:
            return PreparedModel(whole, phases.seconds)
        metadata = parse_metadata(metadata_of(whole), "the rewritten model")
        profile_choice = choose_profile(metadata, options.profile)
        reference = partial(compute_reference, preparation.exact, metadata, profile_choice)
        return PreparedModel(whole, phases.seconds, reference=reference)

    if not _is_for_another_process(model):
        yield prepare_here
        return
    paths = [path or str(Path.cwd()) for path in sys.path]
    with (
        # Removed by this process: the other is killed, and large models lie in files while they are checked.
        tempfile.TemporaryDirectory(prefix="padfree-build-") as scratch,
        _shared_file() as answer,
        _shared_file() as reference,
        _pipe() as (from_child, tells),
    ):
        kept_open = (tells.fileno(), reference.fileno())
        source = model if isinstance(model, FolderModel) else os.fspath(model)
        request = base64.b64encode(pickle.dumps((source, options, time.time(), *kept_open))).decode()
        command = [sys.executable, "-c", _CHILD, request, *paths]

        def wait() -> PreparedModel:
            preparation = _answer(child, answer, model, partial(relay, from_child, watcher, say))
            return (
                replace(preparation, reference=partial(_read_reference, child, reference))
                if options.verify
                else preparation
            )

        with _start(command, answer, scratch, kept_open, is_large=_is_large(model)) as child:
            tells.close()  # the other process has it now; its end closes the pipe
            try:
                _tell(child, device())
                yield wait
            finally:
                child.kill()


def _is_for_another_process(model: ModelSource) -> TypeGuard[str | Path | FolderModel]:
    if isinstance(model, onnx.ModelProto) or not sys.executable:
        return False
    return isinstance(model, FolderModel) or Path(model).is_file()


def _is_large(model: str | Path | FolderModel) -> bool:
    """Whether a folder has so many weights that they are read only when needed."""
    if not isinstance(model, FolderModel):
        return False
    return 2 * sum(file.stat().st_size for file in model.folder.rglob("*.safetensors")) > LARGE_MODEL_BYTES


def open_source(model: ModelSource, storage: Storage, phases: Phases, say: Say) -> Model:
    """The model as it was exported, or as a rewritten file has it. Errors: those of files and folders."""
    if isinstance(model, onnx.ModelProto):
        return Model.of(model)
    return model.make(storage, phases, say) if isinstance(model, FolderModel) else open_model(model, storage)


def _start(
    command: list[str], answer: IO[bytes], scratch: str, kept_open: tuple[int, ...], *, is_large: bool
) -> subprocess.Popen[bytes]:
    # In a session of its own: Ctrl-C at a terminal goes to all processes of one. This process ends the other then.
    keeps = {} if is_large else _KEEPS_MEMORY
    environment = {**os.environ, **keeps, **_ONE_THREAD, "TMPDIR": scratch}
    return subprocess.Popen(
        command,
        bufsize=0,  # a pipe without a buffer can be closed when its reader has gone
        stdin=subprocess.PIPE,
        stdout=answer,
        env=environment,
        start_new_session=True,
        pass_fds=kept_open,
    )


@contextlib.contextmanager
def _pipe() -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    """Both ends of a pipe."""
    ends = os.pipe()
    with os.fdopen(ends[0], "rb") as reads, os.fdopen(ends[1], "wb") as writes:
        yield reads, writes


def _tell(child: subprocess.Popen[bytes], device: Device | None) -> None:
    """Tells the other process the GPU. It may have ended already: its exit code says why."""
    assert child.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        child.stdin.write(json.dumps(device and asdict(device)).encode() + b"\n")


def _let_go(child: subprocess.Popen[bytes]) -> None:
    """Lets the other process go on to its answers: the weights that it handed over take no memory any more."""
    assert child.stdin is not None
    child.stdin.close()


def _shared_file() -> IO[bytes]:
    """A file without a name, in memory where the system can; a pipe would stop its writer until it is read."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("padfree"), "w+b")
    return tempfile.TemporaryFile()


def _answer(
    child: subprocess.Popen[bytes],
    answer: IO[bytes],
    model: str | Path | FolderModel,
    hear: Callable[[], int | None],
) -> PreparedModel:
    """The model that the process made."""
    early = hear()
    code = child.wait() if early is None else early
    answer.seek(0)
    if code == _FAILURE:
        error: Exception = pickle.load(answer)
        raise error
    if code not in (0, _IN_FILE):
        name = model.folder if isinstance(model, FolderModel) else model
        raise BuildError(
            f"the process that rewrites '{name}' ended with code {code} and without an answer; where memory is short, "
            f"rewrite the model on a larger machine (`padfree optimize`) and build from the result"
        )
    content = memoryview(mmap.mmap(answer.fileno(), 0, access=mmap.ACCESS_READ))
    seconds, content = _split_first(content)
    graph, content = _split_first(content)
    message, phases = onnx.load_model_from_string(bytes(graph)), json.loads(bytes(seconds))
    if code == _IN_FILE:
        file = Path(bytes(content).decode())
        _let_go(child)
        return PreparedModel(message, phases, file=file, drop=partial(remove_model, file))
    return PreparedModel(message, phases, content, drop=partial(_empty, answer, child))


def _empty(answer: IO[bytes], child: subprocess.Popen[bytes]) -> None:
    """Frees memory that nobody reads any more, and lets the other process go on."""
    with contextlib.suppress(OSError):
        os.ftruncate(answer.fileno(), 0)
    _let_go(child)


def _split_first(content: memoryview) -> tuple[memoryview, memoryview]:
    """The first part, which its length precedes, and what follows it."""
    (length,) = _LENGTH.unpack_from(content)
    end = _LENGTH.size + length
    return content[_LENGTH.size : end], content[end:]


def _read_reference(child: subprocess.Popen[bytes], file: IO[bytes]) -> Reference:
    """The process's answers, which the engine must give. Raises BuildError where there are none."""
    _let_go(child)
    code = child.wait()
    file.seek(0)
    try:
        reference = pickle.load(file)
    except (EOFError, pickle.UnpicklingError) as error:
        raise BuildError(
            f"the process whose answers the engine is checked with ended with code {code} and without them; where "
            "memory is short, build on a larger machine, or without a check: --no-verify"
        ) from error
    if isinstance(reference, Exception):
        raise reference
    assert isinstance(reference, Reference)
    return reference


def serve(request: str, answer: int) -> NoReturn:
    """What the other process does: writes a model or an error to the file descriptor `answer`, and ends.

    Where the model is verified, it says so first, and ends when it has written the answers that an engine must give.
    """
    model_or_folder, options, since, pipe, reference = pickle.loads(base64.b64decode(request))
    teller = Teller(pipe)
    phases = Phases(teller)
    phases.add(IMPORTS, time.time() - since)
    code = 0
    with os.fdopen(answer, "wb") as file:
        try:
            source = open_source(model_or_folder, Storage.MAP, phases, teller.say)
            preparation = prepare(source, options, _read_device, phases=phases)
            model = preparation.model
            gc.collect()  # the graph's nodes and tensors, which hold the weights, refer to each other
            trim_heap()  # before the model comes to lie in memory once more
            content = serialize(model, consume=True)
            if content is None:
                code, content = _IN_FILE, iter((str(write_aside(model)).encode(),))
            graph = without_initializers(model.proto).SerializeToString()
            parts = (json.dumps(phases.seconds).encode(), graph)
            file.writelines(piece for part in parts for piece in (_LENGTH.pack(len(part)), part))
            file.writelines(content)
            model.weights.check_files()
        except Exception as error:
            code = _FAILURE
            file.seek(0)
            file.truncate()
            pickle.dump(error, file)
    if code != _FAILURE and preparation.exact is not None:
        teller.end(code)
        exact, metadata = preparation.exact, parse_metadata(metadata_of(preparation.model.proto), "the rewritten model")
        del preparation, model, content
        trim_heap()  # while TensorRT copies the weights that this process has made
        with contextlib.suppress(OSError):
            os.nice(_NICENESS)
        with os.fdopen(reference, "wb") as file:
            try:
                profile = choose_profile(metadata, options.profile)
                # The pipe ends when TensorRT has its own copy of the weights, and the one in memory is gone.
                outcome: Reference | Exception = compute_reference(exact, metadata, profile, wait=sys.stdin.read)
            except Exception as error:
                outcome = error
            pickle.dump(outcome, file)
    sys.exit(code)


def _read_device() -> Device | None:
    message = json.loads(sys.stdin.readline())
    return message and Device(**message)

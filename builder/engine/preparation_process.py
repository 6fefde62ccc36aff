# SPDX-License-Identifier: Apache-2.0
"""Prepares a model's file (preparation.py) in a process of its own, while this one starts TensorRT.

That takes seconds to create a builder and holds Python's lock; rewriting BERT-base takes as long.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import mmap
import os
import pickle
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, NoReturn

import onnx
from padfree.onnx_tools.files.model import without_initializers
from padfree.onnx_tools.files.model_file import open_model
from padfree.runtime.gpu.device import Device

from ..errors import BuildError
from .network import serialized
from .preparation import Products, prepare, prepare_model
from .profile import ProfileOptions

_CHILD = """
import os, sys
answer = os.dup(1)
os.dup2(2, 1)  # what libraries print
sys.path[:] = sys.argv[2:]
from padfree.builder.engine.preparation_process import serve
serve(sys.argv[1], answer)
"""
_FAILED, _TOO_LARGE = 3, 4
"""Exit codes of that process: its answer is an error; the model fits no answer."""
_LENGTH = struct.Struct("<q")
_ENVIRONMENT = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 36), "OPENBLAS_NUM_THREADS": "1"}
"""Makes glibc use freed memory again instead of giving it back, as memory that comes anew costs a page fault every 4
KB; and numpy multiply without threads, which wait longer for each other than the few products take."""


@dataclass(frozen=True)
class Prepared:
    """A model for TensorRT's parser. Where `content` holds all of its bytes, `model` is without weights."""

    model: onnx.ModelProto
    content: memoryview | None = None


@contextlib.contextmanager
def preparing(
    model: str | Path | onnx.ModelProto, *, products: Products, profile: ProfileOptions, **options: Any
) -> Iterator[Callable[[], Prepared]]:
    """Begins `prepare_model`, and gives a function that waits for what it returns or raises.

    A file that is there is prepared by another process, which ends with the context.
    """

    def here() -> Prepared:
        return Prepared(prepare_model(model, products=products, profile=profile, **options))

    if isinstance(model, onnx.ModelProto) or not Path(model).is_file() or not sys.executable:
        yield here
        return
    asked = {"linear": products.linear, "norms": products.norms, "profile": asdict(profile)}
    request = json.dumps({"model": os.fspath(model), **asked, **options})
    command = [sys.executable, "-c", _CHILD, request, *(path or str(Path.cwd()) for path in sys.path)]
    with (
        # Removed here: that process is killed, and large models lie in files while they are checked.
        tempfile.TemporaryDirectory(prefix="padfree-build-") as scratch,
        _shared_file() as answer,
        _started(command, answer, scratch) as child,
    ):
        try:
            _tell(child, products.device())
            yield lambda: _answer(child, answer, model) or here()
        finally:
            child.kill()


def _started(command: list[str], answer: IO[bytes], scratch: str) -> subprocess.Popen[bytes]:
    # In a session of its own: Ctrl-C at a terminal goes to all processes of one. This process hears it, and ends that.
    environment = {**os.environ, **_ENVIRONMENT, "TMPDIR": scratch}
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=answer, env=environment, start_new_session=True)


def _tell(child: subprocess.Popen[bytes], device: Device | None) -> None:
    """Answers the one question of that process. It may have ended already: its exit code says why."""
    assert child.stdin is not None
    with contextlib.suppress(BrokenPipeError), child.stdin as pipe:
        pipe.write(json.dumps(device and asdict(device)).encode())


def _shared_file() -> IO[bytes]:
    """A file without a name, in memory where the system can; a pipe would stop its writer until it is read."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("padfree"), "w+b")
    return tempfile.TemporaryFile()


def _answer(child: subprocess.Popen[bytes], answer: IO[bytes], model: str | Path) -> Prepared | None:
    """What the process made of the model; None where that is too large to be handed on."""
    code = child.wait()
    answer.seek(0)
    if code == _FAILED:
        error: Exception = pickle.load(answer)
        raise error
    if code == _TOO_LARGE:
        return None
    if code != 0:
        raise BuildError(
            f"the process that rewrites '{model}' ended with code {code} and without an answer; where memory is short, "
            f"rewrite the model on a larger machine (`padfree optimize`) and build from the result"
        )
    content = memoryview(mmap.mmap(answer.fileno(), 0, access=mmap.ACCESS_READ))
    (length,) = _LENGTH.unpack_from(content)
    begin = _LENGTH.size + length
    return Prepared(onnx.load_model_from_string(bytes(content[_LENGTH.size : begin])), content[begin:])


def serve(request: str, answer: int) -> NoReturn:
    """What the other process does: writes a model or an error to the file descriptor `answer`, and ends."""
    options = json.loads(request)
    products = Products(options.pop("linear"), options.pop("norms"), _told_device)
    profile = ProfileOptions(**options.pop("profile"))
    code = 0
    with os.fdopen(answer, "wb") as file:
        try:
            given = open_model(options.pop("model"))
            model = prepare(given, **options, products=products, profile=profile)
            content = serialized(model)
            if content is None:
                code = _TOO_LARGE
            else:
                graph = without_initializers(model.proto).SerializeToString()
                file.writelines(itertools.chain([_LENGTH.pack(len(graph)), graph], content))
                model.weights.check_files()
        except Exception as error:
            code = _FAILED
            file.seek(0)
            file.truncate()
            pickle.dump(error, file)
    sys.exit(code)


def _told_device() -> Device | None:
    told = json.load(sys.stdin)
    return told and Device(**told)

# SPDX-License-Identifier: Apache-2.0
"""What happens to a model before TensorRT sees it: rewriting and the choice of its products, by a process of its own.

This one starts TensorRT meanwhile, which takes seconds to create a builder and holds Python's lock; rewriting BERT-base
takes as long.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, NoReturn

import onnx
from padfree.onnx_tools import load_model
from padfree.runtime.device import Device
from padfree.runtime.metadata import ONNX_METADATA_KEY, parse_metadata

from .errors import BuildError
from .linear import apply_linear, choose_linear

DEFAULT_PRECISION = "fp16"
_CHILD = """
import os, sys
answer = os.dup(1)
os.dup2(2, 1)  # what libraries print
sys.path[:] = sys.argv[2:]
from padfree.builder.preparation import serve
serve(sys.argv[1], answer)
"""
_FAILED = 3
"""Exit code of that process where it answers with an error."""
_KEEP_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 36)}
"""Makes glibc use freed memory again instead of giving it back: weights are copied several times, and memory that comes
anew costs a page fault every 4 KB."""


@dataclass(frozen=True)
class Products:
    """Whose matrix products and norms a build asks for (linear.py), and its GPU: without one, products stay."""

    linear: str
    norms: str
    device: Device | None


def prepare_model(
    model: str | Path | onnx.ModelProto,
    *,
    interface: str | None,
    precision: str | None,
    strict: bool,
    verify: bool,
    products: Products | None = None,
) -> onnx.ModelProto:
    """The model as it is built: rewritten, unless it carries padfree's metadata, with the products asked for.

    Raises:
        BuildError: a rewritten model of another interface or precision than asked for, or products that are not to be
            had; RewriteError: the model.
    """
    rewritten = _rewritten(model, interface=interface, precision=precision, strict=strict, verify=verify)
    if products is None or products.device is None:
        return rewritten
    metadata = parse_metadata(metadata_of(rewritten), "the rewritten model")
    choice = choose_linear(products.linear, rewritten, metadata.precision, products.device)
    return apply_linear(choice, rewritten, norms=products.norms)


def _rewritten(
    model: str | Path | onnx.ModelProto, *, interface: str | None, precision: str | None, strict: bool, verify: bool
) -> onnx.ModelProto:
    loaded = load_model(model) if isinstance(model, (str, Path)) else model
    if not any(item.key == ONNX_METADATA_KEY for item in loaded.metadata_props):
        from padfree.onnx_tools import rewrite  # brings onnxruntime, which a rewritten model does not need

        result = rewrite(
            loaded,
            interface=interface or "packed",
            precision=precision or DEFAULT_PRECISION,
            strict=strict,
            verify=verify,
        )
        return result.model
    raw = metadata_of(loaded)
    for what, wanted in (("interface", interface), ("precision", precision)):
        if wanted is not None and raw.get(what) != wanted:
            raise BuildError(
                f"the model was rewritten with {what} {raw.get(what)}, {wanted} was asked for; leave --{what} out, or "
                f"build from the original model with --{what} {wanted}"
            )
    return copy.deepcopy(loaded) if loaded is model else loaded


@contextlib.contextmanager
def preparing(
    model: str | Path | onnx.ModelProto, *, products: Products | None = None, **options: Any
) -> Iterator[Callable[[], onnx.ModelProto]]:
    """Begins `prepare_model`, and gives a function that waits for what it returns or raises.

    A file that is there is prepared by another process, which ends with the context.
    """
    if isinstance(model, onnx.ModelProto) or not Path(model).is_file() or not sys.executable:
        yield lambda: prepare_model(model, products=products, **options)
        return
    asked = asdict(products) if products else None
    request = json.dumps({"model": os.fspath(model), "products": asked, **options})
    command = [sys.executable, "-c", _CHILD, request, *(path or str(Path.cwd()) for path in sys.path)]
    with _shared_file() as answer, _started(command, answer) as child:
        try:
            yield lambda: _answer(child, answer, model)
        finally:
            child.kill()


def _started(command: list[str], answer: IO[bytes]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=answer, env={**os.environ, **_KEEP_MEMORY})


def _shared_file() -> IO[bytes]:
    """A file without a name, in memory where the system can; a pipe would stop its writer until it is read."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("padfree"), "w+b")
    return tempfile.TemporaryFile()


def _answer(child: subprocess.Popen[bytes], answer: IO[bytes], model: str | Path) -> onnx.ModelProto:
    code = child.wait()
    answer.seek(0)
    if code == _FAILED:
        error: Exception = pickle.load(answer)
        raise error
    if code != 0:
        raise BuildError(
            f"the process that rewrites '{model}' ended with code {code} and without an answer; where memory is short, "
            f"rewrite the model on a larger machine (`padfree optimize`) and build from the result"
        )
    return onnx.load_model_from_string(answer.read())


def serve(request: str, answer: int) -> NoReturn:
    """What the other process does: writes a model or an error to the file descriptor `answer`, and ends."""
    options = json.loads(request)
    asked = options.pop("products")
    device = asked and asked["device"]
    products = asked and Products(asked["linear"], asked["norms"], device and Device(**device))
    try:
        content, code = prepare_model(**options, products=products).SerializeToString(), 0
    except Exception as error:
        content, code = pickle.dumps(error), _FAILED
    with os.fdopen(answer, "wb") as file:
        file.write(content)
    sys.exit(code)


def metadata_of(model: onnx.ModelProto) -> dict[str, Any]:
    """The metadata object in a rewritten model.

    Raises:
        BuildError: it is not JSON.
    """
    text = next(item.value for item in model.metadata_props if item.key == ONNX_METADATA_KEY)
    try:
        raw: dict[str, Any] = json.loads(text)
    except json.JSONDecodeError as error:
        raise BuildError(f"the model's padfree metadata is damaged ({error}); rewrite the model again") from error
    return raw

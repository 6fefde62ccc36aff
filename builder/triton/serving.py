# SPDX-License-Identifier: Apache-2.0
"""The model to serve: a file with its metadata, and the limits that the user set, checked against each other."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

from padfree.builder.engine.preparation import metadata_of
from padfree.builder.errors import BuildError
from padfree.builder.gpu_files import check_gpus
from padfree.contract.metadata import OutputInfo
from padfree.contract.names import PREFIX, is_onnx
from padfree.onnx_tools import load_model
from padfree.onnx_tools.files import is_rewritten
from padfree.runtime import Metadata, SessionError, open_plan, parse_metadata
from padfree.runtime.texts import tokenizer_path

from . import libraries

NATIVE = "padfree"
BACKENDS = ("tensorrt", "python", NATIVE)
ONNX_MAX_BATCH = 32  # sequences; a model file has no profile that says it
NAMES = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
RESERVED = ("Dockerfile", "padfree.tar", "padfree.json", "kubernetes.yaml")  # files of the repository
RELEASE = re.compile(r"\d\d\.\d\d")
VERSION = re.compile(r"\d+(\.\d+){1,3}")
MOST_INT32, MOST_UINT32 = 2**31 - 1, 2**32 - 1  # what config.pbtxt holds
MOST_DELAY_US = 3_600_000_000  # an hour: longer ones are mistakes


@dataclass(frozen=True)
class ServingOptions:
    """What the user asked for; None lets padfree choose.

    Attributes:
        name: the model's name in the server; the tokenizer is NAME_tokenizer, the ensemble NAME_text.
        backend: "tensorrt", "python" or NATIVE, which is padfree's own; by default NATIVE where it serves the model,
            else python.
        max_batch: most sequences in one batch, and in one request.
        max_queue_delay_us: how long a request may wait for others, microseconds.
        max_queue_size: requests that may wait; more are refused. 0: no limit.
        instances: how many copies of the model run, each GPU.
        gpus: the GPUs that plans run on, by the numbers that the server sees; None: all of them.
        costs: a table of measured costs (`padfree costs`): the python backend cuts batches into the cheapest runs.
        fair_share: clients share the model by tokens, in the python backend.
        tokenizer: a tokenizer.json, or a folder with one: also writes the text ensemble. None: the one that the model
            keeps, if it does.
        max_length: most tokens of a text (default: what the kept tokenizer's folder says, or the most that the model
            takes).
        long_texts: "truncate" or "refuse" texts that are longer.
        server: NGC release of the server, such as "25.08".
        server_tensorrt: the server's TensorRT, where it is no known NGC release.
    """

    name: str
    backend: str | None = None
    max_batch: int | None = None
    max_queue_delay_us: int = 0
    max_queue_size: int = 0
    instances: int = 1
    gpus: tuple[int, ...] | None = None
    costs: Path | None = None
    fair_share: bool = False
    tokenizer: Path | None = None
    max_length: int | None = None
    long_texts: str = "truncate"
    server: str | None = None
    server_tensorrt: str | None = None

    def __post_init__(self) -> None:
        if not NAMES.fullmatch(self.name) or self.name in RESERVED:
            raise BuildError(
                f"model name {self.name!r}, allowed: letters, digits, '_', '-' and '.', a letter or digit first, and "
                f"none of {', '.join(RESERVED)}; pass --name bert"
            )
        if self.server is not None and not RELEASE.fullmatch(self.server):
            raise BuildError(f"--server {self.server!r}, allowed: an NGC release, year.month; pass --server 25.08")
        if self.server_tensorrt is not None and not VERSION.fullmatch(self.server_tensorrt):
            raise BuildError(
                f"--server-tensorrt {self.server_tensorrt!r}, allowed: a version; pass --server-tensorrt 10.6.0"
            )
        if self.backend not in (None, *BACKENDS):
            raise BuildError(f"--backend {self.backend}, allowed: {', '.join(BACKENDS)}")
        if self.fair_share and self.costs is not None:
            raise BuildError("--fair-share cuts runs by whose turn it is, --costs by what they cost; leave one out")
        for option, value, least, most in (
            ("--max-batch", self.max_batch, 1, MOST_INT32),
            ("--max-queue-delay-us", self.max_queue_delay_us, 0, MOST_DELAY_US),
            ("--max-queue-size", self.max_queue_size, 0, MOST_UINT32),
            ("--instances", self.instances, 1, MOST_INT32),
            ("--max-length", self.max_length, 1, MOST_INT32),
        ):
            if value is not None and not least <= value <= most:
                raise BuildError(f"{option} {value}, allowed: {least} or more, at most {most}")


def printable(text: str) -> str:
    """A text for a comment or a message: one line, nothing that a terminal obeys."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


@dataclass(frozen=True)
class ServedModel:
    """A model and how it is served.

    Attributes:
        path: the plan or rewritten .onnx file.
        metadata: what it is.
        backend: one of BACKENDS.
        max_batch: sequences in one batch.
        options: what the user asked for.
        why: why it is the python backend, where the user named none; otherwise "".
    """

    path: Path
    metadata: Metadata
    backend: str
    max_batch: int
    options: ServingOptions
    why: str = ""

    @property
    def is_plan(self) -> bool:
        """A TensorRT engine, not an .onnx file."""
        return self.metadata.engine is not None


def choose(path: Path, options: ServingOptions) -> ServedModel:
    """Reads a model file and settles backend and batch size.

    Raises:
        BuildError: backend and model do not go together, or the batch is larger than the model takes.
        padfree.runtime.SessionError: the plan or its metadata is damaged.
    """
    metadata = _read(path)
    why = "" if options.backend else _why_python(metadata, options)
    backend = options.backend or ("python" if why else NATIVE)
    if backend != NATIVE:
        check_widths(path, metadata)
    if backend != "python":
        _check_packed(path, metadata, backend, options)
    if options.gpus is not None:
        check_gpus(",".join(map(str, options.gpus)), path)
    max_batch = _max_batch(metadata, backend, options.max_batch)
    return ServedModel(path, metadata, backend, max_batch, _with_kept_tokenizer(path, metadata, options), why)


def check_widths(path: Path, metadata: Metadata) -> None:
    """Raises BuildError for inputs that only the native backend fills."""
    is_multiple = next((item.name for item in metadata.token_inputs() if item.width is not None), None)
    if is_multiple is not None:
        raise BuildError(
            f"{path}: the input '{is_multiple}' has several numbers a token, which only --backend {NATIVE} serves; "
            "pass that, or serve the model with padfree's Session"
        )


def has_rows(output: OutputInfo) -> bool:
    """Whether an output has a row of one size for every token, or for every sequence, as the native backend needs."""
    return output.rows_of is not None and output.shape is not None and None not in output.shape[1:]


def _why_python(metadata: Metadata, options: ServingOptions) -> str:
    """Why the native backend does not serve a model, whatever the server; "" if it does."""
    if metadata.engine is None:
        return "an .onnx file runs in onnxruntime"
    if metadata.interface != "packed":
        return f"the plan has the {metadata.interface} interface"
    if metadata.shared_inputs:
        return f"the model has '{metadata.shared_inputs[0]}' once for a whole batch"
    if metadata.input_of_role(PREFIX) is not None:
        return "texts of a batch share what they begin with there"
    if options.costs is not None or options.fair_share:
        return f"{'--costs' if options.costs is not None else '--fair-share'} is for it"
    for output in metadata.outputs:
        if not has_rows(output):
            return f"output '{output.name}' has no row of one size for every token or every sequence"
    try:
        libraries.find_needed([NATIVE])
    except (BuildError, SessionError) as error:
        return f"padfree's libraries are not all here ({error})"
    return ""


def _check_packed(path: Path, metadata: Metadata, backend: str, options: ServingOptions) -> None:
    """Raises BuildError for what the backends that pack requests into plans do not serve."""
    if metadata.engine is None:
        raise BuildError(
            f"{path}: --backend {backend} needs a plan; build one with: padfree build {path} -o model.plan, or serve "
            "the file with --backend python"
        )
    if metadata.interface != "packed":
        raise BuildError(
            f"{path}: the plan has the {metadata.interface} interface, --backend {backend} serves packed ones, whose "
            "inputs are filled with the tokens of many requests; build it with --interface packed, or use --backend "
            "python"
        )
    if metadata.shared_inputs:
        raise BuildError(
            f"{path}: the model has '{metadata.shared_inputs[0]}' once for a whole batch, and --backend {backend} "
            "batches requests whatever they hold; use --backend python, which runs requests of other values by "
            f"themselves, or bind it to a number: padfree optimize --fix {metadata.shared_inputs[0]}=NUMBER"
        )
    if metadata.input_of_role(PREFIX) is not None and backend != NATIVE:
        raise BuildError(
            f"{path}: the plan has an input for shared prefixes, which --backend {backend} does not fill; use "
            f"--backend python, --backend {NATIVE}, where every text computes all of its tokens, or build the plan "
            "without --shared-prefixes"
        )
    if options.costs is not None:
        raise BuildError(f"--costs {options.costs} is for --backend python, which cuts batches itself; leave it out")
    if options.fair_share:
        raise BuildError("--fair-share is for --backend python, which has a queue of its own; pass that too")


def _with_kept_tokenizer(path: Path, metadata: Metadata, options: ServingOptions) -> ServingOptions:
    """The options with the tokenizer that the model keeps, and the length that goes with it, where none is named.

    Not of models that read queries and documents in different ways: a repository's tokenizer has one.
    """
    file, text = tokenizer_path(path), metadata.text
    if options.tokenizer is not None or text is None or text.late is not None or not file.is_file():
        return options
    limits = [limit for limit in (text.max_length, metadata.longest) if limit is not None]
    return replace(options, tokenizer=file, max_length=options.max_length or min(limits, default=None))


def _max_batch(metadata: Metadata, backend: str, asked_batch: int | None) -> int:
    if metadata.engine is None:
        return asked_batch or ONNX_MAX_BATCH
    profile = metadata.engine.profile
    # The backend takes the smallest first dimension of all inputs for the engine's batch size, and tokens are one
    # (tensorrt_backend/src/model_state.cc, GetProfileMaxBatchSize).
    most = min(profile.max_batch, profile.max_tokens)
    if backend == "tensorrt" and asked_batch is not None and asked_batch > most:
        raise BuildError(
            f"--max-batch {asked_batch}, the plan takes {most} sequences; pass --max-batch {most}, or build it with "
            f"--max-batch {asked_batch}"
        )
    return asked_batch or most


def _read(path: Path) -> Metadata:
    if not is_onnx(path):
        return open_plan(path)
    model = load_model(path)
    if not is_rewritten(model):
        raise BuildError(
            f"{path}: an exported model, not a rewritten one; rewrite it first: padfree optimize {path} -o packed.onnx"
        )
    return parse_metadata(metadata_of(model), str(path))

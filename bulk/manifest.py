# SPDX-License-Identifier: Apache-2.0
"""What fixes the result: inputs, options, the model, and with them shards and batches. Written once, never changed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from padfree.contract.data_files import ROW_KINDS
from padfree.contract.fields import MOST_INT64, Fields, decode
from padfree.contract.texts import RIGHT, SIDES

from .errors import BulkError
from .locations import Location

MANIFEST = "_manifest.json"
KIND, FORMAT = "padfree bulk manifest", 1
DTYPES = ("float16", "float32")
ROW_NUMBERS = "row numbers"
ID_TYPES = ("int64", "string", ROW_NUMBERS)


@dataclass(frozen=True)
class Piece:
    """Rows of one input that follow each other.

    Attributes:
        file: number of the input.
        at: the first byte; of parquet files, the row group.
        size: bytes; of parquet files, the rows of the group that come before.
        first: number of the first row in the file.
        rows: how many there are, bad ones too.
        digests: SHA-256 of its bytes; of parquet files, of the row group's bytes of each column that is read. None
            where an earlier version wrote the manifest.
    """

    file: int
    at: int
    size: int
    first: int
    rows: int
    digests: tuple[str, ...] = ()


Shard = tuple[Piece, ...]


@dataclass(frozen=True)
class InputFile:
    """An input as it was when the manifest was made.

    Attributes:
        root: what the user gave: the file, or the folder that it lies in.
        path: on the root's filesystem.
        format: one of ROW_KINDS.
        size: in bytes.
        mtime_ns: when it was changed last; 0 where a store does not say.
        etag: what an object store calls its content; "" elsewhere.
        digest: SHA-256 of the content, of parquet files of the footer; "" where there is an etag.
        rows: how many it has.
        columns: of CSV files, in their order.
    """

    root: str
    path: str
    format: str
    size: int
    mtime_ns: int
    etag: str
    digest: str
    rows: int
    columns: tuple[str, ...] = ()

    def location(self) -> Location:
        """Where it lies."""
        return Location.of(self.root).at(self.path)


@dataclass(frozen=True)
class Options:
    """What is asked of the inputs and the model.

    Attributes:
        task: one of padfree.runtime.text.tasks.TASKS, or TOKENS.
        head: the model's output.
        columns: those of the text, or of the two texts of a pair.
        id_column: None: rows are numbered through all inputs.
        prompt: what is put in front of every text.
        max_length: most tokens of a text or pair; longer ones are cut.
        dtype: the result's, one of DTYPES.
        max_text_bytes: larger texts are bad rows.
        shard_rows: rows of a shard, about.
        max_tokens: tokens of a batch; None: no limit.
        max_sequences: texts of a batch; None: no limit.
        truncation_side: the end that longer texts lose.
        token_types: whether texts have token types.
        values: columns of what the model reads of every text beside its tokens.
    """

    task: str
    head: str
    columns: tuple[str, ...]
    id_column: str | None
    prompt: str
    max_length: int
    dtype: str
    max_text_bytes: int
    shard_rows: int
    max_tokens: int | None
    max_sequences: int | None
    truncation_side: str = RIGHT
    token_types: bool = True
    values: tuple[str, ...] = ()


@dataclass(frozen=True)
class Model:
    """The files that make vectors of texts: name, and SHA-256 of the model and of its tokenizer."""

    name: str
    sha256: str
    tokenizer_sha256: str


@dataclass(frozen=True)
class Manifest:
    """Everything that determines the bits of the result.

    Attributes:
        model: the files.
        options: what was asked for.
        id_type: the result's, one of ID_TYPES.
        inputs: in the order of their rows' numbers.
        shards: each makes a file.
    """

    model: Model
    options: Options
    id_type: str
    inputs: tuple[InputFile, ...]
    shards: tuple[Shard, ...]

    # What follows from the fields is computed once: there are as many shards as rows allow, and each of them asks.

    @cached_property
    def rows(self) -> int:
        """Rows of all inputs."""
        return sum(file.rows for file in self.inputs)

    @cached_property
    def first_rows(self) -> tuple[int, ...]:
        """The number of every input's first row, counted through all inputs."""
        first, firsts = 0, []
        for file in self.inputs:
            firsts.append(first)
            first += file.rows
        return tuple(firsts)

    def shard_rows(self, shard: int) -> int:
        """How many rows a shard has, bad ones too."""
        return sum(piece.rows for piece in self.shards[shard])

    @cached_property
    def digest(self) -> str:
        """SHA-256 of all but the times of files: what stands in every part of the result."""
        content = self.to_dict()
        for file in content["inputs"]:
            del file["mtime_ns"]
        return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()

    def to_dict(self) -> dict[str, Any]:
        """The object that `read_manifest` reads."""
        content = {"kind": KIND, "format": FORMAT, **json.loads(json.dumps(asdict(self)))}
        for name in _NEWER:
            if getattr(self.options, name) == Options.__dataclass_fields__[name].default:
                del content["options"][name]
        for piece in (piece for shard in content["shards"] for piece in shard):
            if not piece["digests"]:
                del piece["digests"]  # as before there were digests, so that older parts stay valid
        return content


def write_manifest(output: Location, manifest: Manifest) -> None:
    """Puts it into the folder of the result."""
    output.child(MANIFEST).write(json.dumps(manifest.to_dict(), indent=1).encode())


def read_manifest(output: Location) -> Manifest:
    """The manifest of a folder.

    Raises:
        BulkError: there is none, or it is damaged.
    """
    location = output.child(MANIFEST)
    try:
        raw = decode(location.read().decode())
    except ValueError as error:
        if isinstance(error, BulkError):
            raise
        raise BulkError(f"{location.shown_path}: not JSON ({error}); start again in another output folder") from error
    fields = Fields(raw, location.shown_path, error=BulkError)
    fields.text("kind", (KIND,))
    fields.integer("format", FORMAT, FORMAT)
    model = fields.object("model")
    inputs = fields.objects("inputs", _input)
    return Manifest(
        model=Model(model.string("name"), model.string("sha256"), model.string("tokenizer_sha256")),
        options=_options(fields.object("options")),
        id_type=fields.text("id_type", ID_TYPES),
        inputs=inputs,
        shards=tuple(_shard(item, location.shown_path, len(inputs)) for item in raw.get("shards", ())),
    )


def _input(item: Fields) -> InputFile:
    return InputFile(
        root=item.string("root"),
        path=item.string("path"),
        format=item.text("format", ROW_KINDS),
        size=item.integer("size", most=MOST_INT64),
        mtime_ns=item.integer("mtime_ns", most=MOST_INT64),
        etag=item.string("etag"),
        digest=item.string("digest"),
        rows=item.integer("rows", most=MOST_INT64),
        columns=item.strings("columns"),
    )


def _options(item: Fields) -> Options:
    return Options(
        task=item.text("task"),
        head=item.text("head"),
        columns=item.strings("columns"),
        id_column=item.optional_string("id_column"),
        prompt=item.string("prompt"),
        max_length=item.integer("max_length", least=1),
        dtype=item.text("dtype", DTYPES),
        max_text_bytes=item.integer("max_text_bytes", least=1),
        shard_rows=item.integer("shard_rows", least=1),
        max_tokens=item.optional_integer("max_tokens", least=1),
        max_sequences=item.optional_integer("max_sequences", least=1),
        truncation_side=item.text("truncation_side", SIDES) if "truncation_side" in item else RIGHT,
        token_types="token_types" not in item or item.boolean("token_types"),
        values=item.strings("values") if "values" in item else (),
    )


def _shard(raw: Any, source: str, files: int) -> Shard:
    inner = Fields({"pieces": raw}, source, "shards", error=BulkError)
    return inner.objects(
        "pieces",
        lambda item: Piece(
            item.integer("file", most=files - 1),
            **{name: item.integer(name, most=MOST_INT64) for name in ("at", "size", "first", "rows")},
            digests=item.strings("digests") if "digests" in item else (),
        ),
    )


def differences(old: Manifest, options: Options, model: Model, paths: Iterable[tuple[str, str]]) -> Iterator[str]:
    """What a second command asks for that the manifest does not hold, each as one phrase.

    Args:
        old: the manifest.
        options: asked for now.
        model: the one of now.
        paths: root and path of the inputs that are there now.
    """
    for name, option in OPTION_NAMES.items():
        before, after = getattr(old.options, name), getattr(options, name)
        if before != after:
            yield f"{option} was {_text(before)} and is {_text(after)} now"
    if old.model.sha256 != model.sha256:
        before, after = (f"{one.name} ({one.sha256[:12]}...)" for one in (old.model, model))
        yield f"the model was {before} and is {after} now"
    if old.model.tokenizer_sha256 != model.tokenizer_sha256:
        yield "the tokenizer is another one"
    known_files, present = {(file.root, file.path) for file in old.inputs}, set(paths)
    for what, some in (("is new", present - known_files), ("is not among them now", known_files - present)):
        for _, path in sorted(some)[:1]:
            yield f"the input {path} {what}"


OPTION_NAMES: Mapping[str, str] = {
    "task": "the task",
    "head": "--head",
    "columns": "the text's column",
    "id_column": "--id",
    "prompt": "the prompt",
    "max_length": "--max-length",
    "dtype": "--dtype",
    "max_text_bytes": "--max-text-bytes",
    "shard_rows": "--shard-rows",
    "max_tokens": "--max-tokens",
    "max_sequences": "--max-batch",
    "truncation_side": "the end that longer texts lose",
    "token_types": "whether texts have token types",
    "values": "the columns of the model's other inputs",
}
_NEWER = ("truncation_side", "token_types", "values")
"""Options that older manifests lack: with their defaults they are left out, so that digests stay as they were."""


def _text(value: Any) -> str:
    return ", ".join(value) if isinstance(value, tuple) else repr(value)

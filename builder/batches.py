# SPDX-License-Identifier: Apache-2.0
"""Reads batches from files: JSON lines, tables, arrays, texts."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from padfree.contract.data_files import (
    ARRAYS,
    ROW_KINDS,
    STREAM,
    TABLE_KINDS,
    TEXT,
    is_archive,
    is_stream,
    kind_of,
    suffixes_of,
)
from padfree.contract.fields import decode
from padfree.contract.late_interaction import QUERY
from padfree.contract.text_files import read_text
from padfree.contract.text_inputs import PROMPT_LENGTH
from padfree.contract.texts import RIGHT, TextInfo
from padfree.runtime import Metadata
from padfree.runtime.text import SPELLINGS_TEXT
from padfree.runtime.texts import Text, TextReader

from .array_files import RESULT_SUFFIX, read_arrays
from .errors import BuildError
from .tables import read_table
from .text_rows import check_single, holds_texts, text_of

_log = logging.getLogger(__name__)

Request = dict[str, list[Any]]
Records = Mapping[int, Mapping[str, Any]]
"""Objects or rows by the numbers of their lines."""

TEXT_ADVICE = f"only texts have answers to write; write {RESULT_SUFFIX}, or pass texts"


@dataclass(frozen=True)
class TextOptions:
    """How texts become tokens.

    Attributes:
        tokenizer: a Hugging Face tokenizer.json; None: the one that the model keeps beside it.
        truncate: cut texts to the model's positions instead of refusing longer ones; models that keep a tokenizer cut
            them anyway, as their folder says.
        model: the model's file.
        prompt: the name of one of the prompts that the model keeps.
        watch: called with the number of texts; gives a function to call after every portion, with its texts and tokens.
    """

    tokenizer: Path | None = None
    truncate: bool = False
    model: Path | None = None
    prompt: str | None = None
    watch: Callable[[int], AbstractContextManager[Callable[[int, int], None]]] = lambda _: nullcontext(lambda *_: None)


def read_batch(path: Path, metadata: Metadata, texts: TextOptions = TextOptions()) -> Request:
    """Reads a batch for Session.run.

    Args:
        path: .jsonl, .ndjson: one object per line, input name -> list of integers, or {"text": "..."}, or a bare list
            of ids; beside either, inputs with one row per sequence add input name -> a number, or a list of numbers.
            .npz: token inputs [T] with seq_lens [B], or grids [B, S] with attention_mask. .txt: one text per line.
            Pairs of texts are {"text": "...", "text_pair": "..."}, or in another of the usual spellings
            (padfree.runtime.text.pairs), or lists of two texts. .csv and .parquet: columns of these names.
        metadata: the model's inputs.
        texts: how texts become tokens.

    Raises:
        BuildError: the file cannot be read, or holds something else; the message names line and value.
    """
    if is_stream(path):
        raise BuildError(f"{path}: {STREAM}")
    kind = kind_of(path)
    if not kind:
        advice = "unpack it first" if is_archive(path) else "write one of them"
        raise BuildError(
            f"{path}: unknown kind of input {path.suffix!r}, allowed: {suffixes_of(*ROW_KINDS, ARRAYS)}; {advice}"
        )
    if kind == ARRAYS:
        items = metadata.sequence_inputs()
        return read_arrays(path, [name for item in items for name in {item.name, item.original_name}])
    if kind == TEXT:
        return _encode(_lines(path), path, metadata, texts)
    return _of_records(_read_records(path), path, metadata, texts)


def _of_records(records: Records, path: Path, metadata: Metadata, texts: TextOptions) -> Request:
    """The texts or token inputs of objects or rows; messages call each by its number."""
    info = metadata.text
    if records and all(holds_texts(record.get("", record), info) for record in records.values()):
        return _encode(_texts_of(records, info, path), path, metadata, texts) | _values(records, path, metadata)
    _check_are_no_texts(records, info, path)
    names = list(next(iter(records.values()), [metadata.ids_input().name]))
    request: Request = {name: [] for name in names}
    for number, record in enumerate(records.values(), 1):
        if set(record) != set(names):
            raise BuildError(
                f"{path}, entry {number}: has {sorted(record)}, entry 1 has {sorted(names)}; make them alike"
            )
        for name in names:
            request[name].append(record[name])
    if "" in request:  # bare lists of ids
        request[metadata.ids_input().name] = request.pop("")
    return request


def _texts_of(records: Records, info: TextInfo | None, path: Path) -> list[Text]:
    """The text, or the pair, of each object. Raises BuildError."""
    return [text_of(record.get("", record), info, path, number) for number, record in records.items()]


def _check_are_no_texts(records: Records, info: TextInfo | None, path: Path) -> None:
    """Refuses texts beside token inputs of other lines, and in fields that padfree does not read. Raises BuildError."""
    lines: dict[bool, int] = {}
    for number, record in records.items():
        lines.setdefault(holds_texts(record.get("", record), info), number)
    if len(lines) == 2:
        raise BuildError(
            f"{path}: line {lines[True]} holds a text, line {lines[False]} does not; write a text in every line, or "
            "token ids in every line"
        )
    for number, record in records.items():
        names = [repr(name) for name, value in record.items() if isinstance(value, str)]
        if names:
            subject = f"{' and '.join(names)} hold a text" if names[1:] else f"{names[0]} holds a text"
            raise BuildError(
                f"{path}, line {number}: {subject}, and texts are read from 'text', pairs from {SPELLINGS_TEXT}; "
                f"{'rename the one that is meant' if names[1:] else 'rename it'}"
            )


def _values(records: Records, path: Path, metadata: Metadata) -> Request:
    """The inputs with one row per sequence that texts do not give, from lines by their numbers."""
    columns: Request = {}
    for item in metadata.sequence_inputs():
        if item.original_name == PROMPT_LENGTH:
            continue
        columns[item.name] = []
        for line, record in records.items():
            name = next((name for name in (item.name, item.original_name) if name in record), None)
            if name is None:
                raise BuildError(
                    f"{path}, line {line}: has no '{item.original_name}', which the model reads of every text; add it, "
                    f"or bind it to a number: padfree optimize --fix {item.original_name}=NUMBER"
                )
            columns[item.name].append(_number(record[name], path, line))
    return columns


def read_text_rows(path: Path, info: TextInfo | None, advice: str = TEXT_ADVICE) -> list[Text]:
    """The texts, or pairs of texts, of a file, for a model whose folder says `info`.

    `advice` tells users of another file what to do.

    Raises:
        BuildError: the file cannot be read, or holds something else.
    """
    return _read_text_records(path, info, advice)[0]


def read_text_batch(path: Path, metadata: Metadata) -> tuple[list[Text], Request]:
    """The texts, or pairs, of a file, and the model's other inputs with one row per sequence. Raises BuildError."""
    texts, records = _read_text_records(path, metadata.text, TEXT_ADVICE)
    return texts, _values(records, path, metadata) if records else {}


def _read_text_records(path: Path, info: TextInfo | None, advice: str) -> tuple[list[Text], Records]:
    """Texts, and by line or row the objects that they come from: none for a file of plain texts."""
    if is_stream(path):
        raise BuildError(f"{path}: {STREAM}")
    if is_archive(path):
        raise BuildError(f"{path}: is compressed; unpack it first")
    if kind_of(path) not in ROW_KINDS:
        raise BuildError(f"{path}: {advice} ({suffixes_of(*ROW_KINDS)})")
    if kind_of(path) == TEXT:
        return list(_lines(path)), {}
    records = _read_records(path)
    for number, record in records.items():
        if not holds_texts(record.get("", record), info):
            if info is not None and info.takes_pairs and any(isinstance(item, str) for item in record.values()):
                text_of(record, info, path, number)  # which says what a pair is
            raise BuildError(f"{path}, line {number}: holds no text, and {advice}")
    return _texts_of(records, info, path), records


def _number(value: Any, path: Path, line: int) -> Any:
    """A number, also where a CSV file has it as a text. Raises BuildError."""
    if not isinstance(value, str):
        return value
    try:
        return decode(value)
    except ValueError as error:
        raise BuildError(f"{path}, line {line}: {value[:40]!r} is no number; correct it") from error


def read_texts(texts: Sequence[Text], metadata: Metadata, options: TextOptions) -> Request:
    """Texts, or pairs of texts, that were given instead of a file, for Session.run. Raises BuildError."""
    return _encode(texts, "--text", metadata, options)


def _read_records(path: Path) -> Records:
    """The rows of a table, or the objects of lines that are not empty, by number. Raises BuildError."""
    if kind_of(path) in TABLE_KINDS:
        return dict(enumerate(read_table(path), 1))
    return {number: _read_line(path, number, line) for number, line in enumerate(_lines(path), 1) if line.strip()}


def _lines(path: Path) -> list[str]:
    """Line feeds alone end lines, as for padfree embed: any other character, such as U+2028, belongs to a text."""
    text = read_text(path, BuildError, "pass a UTF-8 text file", encoding="utf-8-sig", newline="")
    lines = text.split("\n")
    if not lines[-1]:
        lines.pop()
    return [line.removesuffix("\r") for line in lines]


def _read_line(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        record = decode(line)
    except ValueError as error:
        raise BuildError(f"{path}, line {number}: not JSON ({error}); write one object or list per line") from error
    if isinstance(record, list):
        return {"": record}
    if not isinstance(record, dict) or not record:
        raise BuildError(
            f"{path}, line {number}: {line[:60]!r}, allowed: an object or a list of ids per line; correct it"
        )
    return record


def _encode(texts: Sequence[Text], path: Path | str, metadata: Metadata, options: TextOptions) -> Request:
    from .tokenization import as_build_errors, load_tokenizer

    if options.tokenizer is None and options.model is None:
        raise BuildError(
            f"{path}: texts need a tokenizer; pass --tokenizer tokenizer.json (beside the model on the Hub)"
        )
    check_single(texts, metadata.text, f"{path}: ")
    if options.tokenizer is not None:
        load_tokenizer(options.tokenizer, metadata)  # for its hints
    with as_build_errors(f"{path}: "), options.watch(len(texts)) as on_texts:
        model = options.model or Path("the model")
        reader = TextReader(model, metadata, options.tokenizer, truncate=options.truncate, on_texts=on_texts)
        tokens = reader.read(texts, prompt_name=options.prompt)
    check_lengths(path, tokens.seq_lens, tokens.cut, reader, metadata.longest, options.prompt)
    return dict(tokens.request)


def check_lengths(
    source: Path | str,
    seq_lens: Sequence[int],
    cut: int,
    reader: TextReader,
    longest: int | None,
    prompt_name: str | None = None,
) -> None:
    """Says how many texts of `source`, with this prompt, were cut.

    Raises:
        BuildError: one is longer than the model takes.
    """
    for at, length in enumerate(seq_lens, 1):
        if longest is not None and length > longest:
            raise BuildError(
                f"{source}: text {at} has {length} tokens, the model takes {longest}; cut texts with --truncate, or "
                "split it"
            )
    if cut:
        both = reader.info.late is not None and prompt_name is None  # pairs are a query and a document each
        _log.warning(
            "%s: %s of more than %s tokens%s that lost their %s: %d of %d",
            source,
            "pairs" if reader.info.refuses_single_texts else "texts",
            reader.most_of(prompt_name),
            f" (queries: {reader.most_of(QUERY)})" if both else "",
            "ends" if reader.truncation_side == RIGHT else "beginnings",
            cut,
            len(seq_lens),
        )

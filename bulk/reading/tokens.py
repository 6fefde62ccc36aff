# SPDX-License-Identifier: Apache-2.0
"""From chunks of rows to tokens, in processes beside the one that runs the model."""

from __future__ import annotations

import multiprocessing
import os
import queue
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from padfree.contract.text_inputs import ZERO_WHEN_MISSING
from padfree.runtime import Array, SessionError, read_values
from padfree.runtime.text import EncodedTexts, Query, Text, TextError, TextInputs, add_prompt, in_role

from ..errors import BulkError, IncompleteError
from ..manifest import Manifest
from ..models import read_checked_tokenizer
from ..processes import die_with_parent
from .rows import BadRow, Chunk, ParsedRows, parse

CHUNKS_A_PROCESS = 3  # under way at once, per process


@dataclass(frozen=True)
class Tokens:
    """Tokens of a chunk's good rows.

    Attributes:
        ids: of the good rows, an arrow array of int64 or string.
        seq_lens: tokens of each, int32 [B]; of queries and documents apart, [2 * B].
        columns: the model's inputs by the original's names, int32 [T], or [B] of those with a number per sequence;
            token types that are zeros are left out.
        bad: the rows without tokens, and why.
        cut: how many rows have a text that was longer than the model takes.
    """

    ids: Any
    seq_lens: Array
    columns: dict[str, Array]
    bad: tuple[BadRow, ...]
    cut: int


class TextTokens:
    """Makes tokens of chunks.

    Args:
        manifest: which columns, which prompt, and how many tokens at most.
        tokenizer: the tokenizer.json, which has to be the manifest's.
        inputs: the model's inputs that are made from texts.
        rows: rows of the model's table of ids; None: not known.
    """

    def __init__(self, manifest: Manifest, tokenizer: Path, inputs: TextInputs, rows: int | None = None) -> None:
        options = manifest.options
        self._manifest, self._inputs = manifest, inputs
        file = read_checked_tokenizer(manifest.model, tokenizer, rows)
        side, types = options.truncation_side, options.token_types
        file = replace(file, truncation_side=side, token_types=types, template=inputs.template, late=inputs.late)
        self._encoder = file.encoder(options.max_length)
        self._are_apart = inputs.late is not None and len(options.columns) > 1
        zeros = self._encoder.types_are_zeros(pairs=len(options.columns) > 1 and not self._are_apart)
        self._left_out = inputs.types_name if zeros and inputs.types_name in ZERO_WHEN_MISSING else None
        self._prompt_tokens = self._encoder.prompt_tokens(options.prompt) if inputs.leaves_out_prompts else 0

    def read(self, chunk: Chunk) -> Tokens:
        """Tokens of the chunk's good rows, in their order."""
        parsed = parse(chunk, self._manifest)
        good = [(row, text) for row, text in enumerate(parsed.texts) if text is not None]
        values, unfit = self._values(parsed, [row for row, _ in good])
        good, encoded, failures = self._encode([(row, text) for row, text in good if row not in unfit])
        lens = encoded.seq_lens.reshape(-1, 2).sum(1) if self._are_apart else encoded.seq_lens
        counts = {row: count for (row, _), count in zip(good, lens.tolist(), strict=True)}
        failures |= {row: "no tokens" for row, count in counts.items() if not count}
        bad = [
            BadRow(chunk.file, chunk.first + row, kind, reason, parsed.ids[row])
            for kind, reasons in (("value", unfit), ("no tokens", failures))
            for row, reason in reasons.items()
        ]
        rows = [row for row, count in counts.items() if count]
        kind = pa.string() if self._manifest.id_type == "string" else pa.int64()
        ids = pa.array([parsed.ids[row] for row in rows], kind)
        nonempty = encoded.without_empty()
        columns = self._inputs.columns(nonempty, self._prompt_tokens)
        columns.pop(self._left_out or "", None)
        for item in self._inputs.others:
            empty = np.zeros((0, *item.trailing_shape), np.float32 if item.holds_floats else np.int32)
            columns[item.name] = np.concatenate([empty, *(values[row][item.name] for row in rows)])
        return Tokens(
            ids,
            nonempty.seq_lens,
            columns,
            tuple(sorted([*parsed.bad, *bad], key=lambda row: row.row)),
            int(encoded.cut.reshape(-1, 2).any(1).sum() if self._are_apart else encoded.cut.sum()),
        )

    def _encode(self, good: list[tuple[int, Text]]) -> tuple[list[tuple[int, Text]], EncodedTexts, dict[int, str]]:
        """The rows whose texts can be encoded, with these; their tokens; and why the others cannot, by row."""
        rows = [self._texts_of(text) for _, text in good]
        try:
            return good, self._encoder.encode([text for texts in rows for text in texts]), {}
        except TextError:
            parts = [self._alone(texts) for texts in rows]
        failures = {row: part for (row, _), part in zip(good, parts, strict=True) if isinstance(part, str)}
        good_parts = [part for part in parts if isinstance(part, EncodedTexts)]
        encoded = EncodedTexts.join(good_parts) if good_parts else self._encoder.encode([])
        return [item for item in good if item[0] not in failures], encoded, failures

    def _texts_of(self, text: Text) -> list[Text]:
        """What is encoded of a row: a text or a pair, or a query and a document by themselves."""
        prompt = self._manifest.options.prompt
        if self._are_apart and not isinstance(text, str):
            return [Query(text[0]), text[1]]
        if self._inputs.late is not None:
            return in_role([text], prompt)
        return [add_prompt(text, prompt) if prompt else text]

    def _alone(self, texts: Sequence[Text]) -> EncodedTexts | str:
        try:
            return self._encoder.encode(texts)
        except TextError as error:
            return error.reason

    def _values(self, parsed: ParsedRows, rows: Sequence[int]) -> tuple[dict[int, dict[str, Array]], dict[int, str]]:
        """Values of the inputs beside tokens, by row and input; and, by row, why the model does not take its values."""
        values, unfit = dict[int, dict[str, Array]](), dict[int, str]()
        for row in rows if self._inputs.others else ():
            value = self._read(parsed.values[row])
            if isinstance(value, str):
                unfit[row] = f"value: {value}"
            else:
                values[row] = value
        return values, unfit

    def _read(self, values: Sequence[Any]) -> dict[str, Array] | str:
        """The values of one row, [1] or [1, N] each; or why the model does not take them."""
        try:
            pairs = zip(self._inputs.others, values, strict=True)
            return {item.name: read_values([_number(value)], item, 1) for item, value in pairs}
        except (SessionError, ValueError) as error:
            return str(error)


def _number(value: Any) -> Any:
    """A value as a number; text files hold numbers as text."""
    if isinstance(value, bytes):
        value = value.decode()
    if not isinstance(value, str):
        return value
    return int(value) if value.strip().lstrip("+-").isdigit() else float(value)


class TokenizerPool:
    """Processes that make tokens. Just enough chunks are under way that no process waits.

    Args:
        processes: how many, 1 or more.
        settings: for TextTokens.
    """

    def __init__(self, processes: int, *settings: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._room = threading.BoundedSemaphore(CHUNKS_A_PROCESS * processes)
        self._threads = ThreadPoolExecutor(processes, "padfree-tokens")
        self._free: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._processes = []
        for number in range(processes):
            ours, theirs = context.Pipe()
            process = context.Process(target=_main, args=(theirs, *settings), name=f"padfree-tokens-{number}")
            process.start()
            theirs.close()
            self._processes.append(process)
            self._free.put(ours)

    def submit(self, chunk: Chunk) -> Future[Tokens]:
        """Hands over a chunk, when there is room for it; the future raises IncompleteError where a process is gone."""
        self._room.acquire()
        future = self._threads.submit(self._ask, chunk)
        future.add_done_callback(lambda _: self._room.release())
        return future

    def close(self) -> None:
        """Ends the processes."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for process in self._processes:
            process.kill()
            process.join()

    def _ask(self, chunk: Chunk) -> Tokens:
        """Asks a free process for the tokens of a chunk; there is one, as there are as many threads as processes."""
        pipe = self._free.get()
        try:
            pipe.send(chunk)
            answer = pipe.recv()
        except (EOFError, OSError) as error:
            raise IncompleteError(
                "a process that makes tokens has ended by itself, perhaps for lack of memory; free some, or pass a "
                "smaller --tokenizers, and run the command again"
            ) from error
        finally:
            self._free.put(pipe)
        if isinstance(answer, Tokens):
            return answer
        raise BulkError(f"tokens of file {chunk.file}, from row {chunk.first} on: {answer}")


def _main(pipe: Any, *settings: Any) -> None:
    """The process: answers chunks until the other end of the pipe is closed."""
    die_with_parent()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # there are as many processes as cores that they may use
    tokens = TextTokens(*settings)
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):  # who asked is gone: the other end is closed
        while True:
            chunk = pipe.recv()
            try:
                answer: Tokens | str = tokens.read(chunk)
            except Exception as error:  # whatever it is: somebody waits for an answer
                answer = f"{type(error).__name__}: {error}"
            pipe.send(answer)

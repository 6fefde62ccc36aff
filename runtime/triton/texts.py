# SPDX-License-Identifier: Apache-2.0
"""From texts to token ids: what TokenizerModel does, without the server."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Encoding

from ..errors import SessionError
from ..texts import Text, largest_id, read_tokenizer
from .answers import Answer, Failure, Request, attempt
from .items import SEQ_LENS
from .parameters import PREFIX, TokenizerParameters

Array = npt.NDArray[Any]
TEXT = "text"
TEXT_PAIR = "text_pair"
COLUMNS: Mapping[str, Callable[[Encoding], Sequence[int]]] = {
    "input_ids": lambda encoding: encoding.ids,
    "token_type_ids": lambda encoding: encoding.type_ids,
}
OUTPUTS = (*COLUMNS, SEQ_LENS)


@dataclass(frozen=True)
class Texts:
    """The texts of one request, the names of the outputs that its caller wants, and how large the texts are."""

    rows: list[Text]
    wanted: Sequence[str]
    size_bytes: int


class TextTokenizer:
    """Tokenises the texts of many requests together.

    Args:
        file: the model's tokenizer.json.
        parameters: what becomes of long texts, and how large they may be.

    Raises:
        SessionError: no such file, not a tokenizer, or one with more ids than the model.
    """

    def __init__(self, file: Path, parameters: TokenizerParameters) -> None:
        self._tokenizer = read_tokenizer(file)
        token, largest = largest_id(self._tokenizer)
        if 0 < parameters.vocabulary <= largest:
            raise SessionError(
                f"{file}: has ids up to {largest} ({token!a}), '{PREFIX}vocabulary' is {parameters.vocabulary}: it is "
                "another model's; copy the tokenizer.json that was saved with the model"
            )
        self._max_length = parameters.max_length
        self._limits = parameters
        if parameters.long_texts == "truncate":
            self._tokenizer.enable_truncation(parameters.max_length)

    def read(self, request: Request) -> Texts | Failure:
        """The texts of a request, checked and decoded, or the reason why it is refused."""
        return attempt(read_texts, request, self._limits)

    def answer(self, requests: Sequence[Texts | Failure]) -> list[Answer]:
        """Token ids, or the reason why there are none, for every request; all texts together."""
        flat = [text for texts in requests if isinstance(texts, Texts) for text in texts.rows]
        encodings = iter(self._tokenizer.encode_batch(flat))
        return [
            texts
            if isinstance(texts, Failure)
            else attempt(self._one, list(islice(encodings, len(texts.rows))), texts.wanted)
            for texts in requests
        ]

    def answer_aside(self, texts: Texts) -> Answer:
        """The answer to one request, its texts one after the other: other requests find threads of the library free."""
        # Not `encode`, which holds the interpreter up.
        encodings = [self._tokenizer.encode_batch([text])[0] for text in texts.rows]
        return attempt(self._one, encodings, texts.wanted)

    def _one(self, encodings: Sequence[Encoding], wanted: Iterable[str]) -> dict[str, Array]:
        seq_lens = [len(encoding) for encoding in encodings]
        longest = max(seq_lens)
        if longest > self._max_length:
            raise SessionError(
                f"text {seq_lens.index(longest)} has {longest} tokens, allowed: {self._max_length}; send a shorter "
                f"text, or serve with {PREFIX}long_texts truncate"
            )
        outputs: dict[str, Array] = {}
        for name in wanted:
            if name == SEQ_LENS:
                outputs[name] = np.array(seq_lens, dtype=np.int32)[:, None]
                continue
            outputs[name] = np.zeros((len(encodings), longest), dtype=np.int32)
            for row, encoding in zip(outputs[name], encodings, strict=True):
                row[: len(encoding)] = COLUMNS[name](encoding)
        return outputs


def read_texts(request: Request, limits: TokenizerParameters) -> Texts:
    """The texts of one request, or its pairs of texts.

    Raises:
        SessionError: no texts, another shape, texts and second texts that do not go together, texts larger than the
            limits, bytes that are not UTF-8.
    """
    if TEXT not in request.tensors:
        raise SessionError(f"'{TEXT}' is missing; send one text a row, and '{TEXT_PAIR}' only beside it")
    names = [name for name in (TEXT, TEXT_PAIR) if name in request.tensors]
    columns = [_column(request.tensors, name) for name in names]
    if len(columns[0]) != len(columns[-1]):
        raise SessionError(
            f"'{TEXT_PAIR}' has {len(columns[1])} texts, '{TEXT}' has {len(columns[0])}; send one second text for each "
            "text"
        )
    size_bytes = sum(map(len, (text for column in columns for text in column)))
    if size_bytes > limits.max_request_bytes:
        raise SessionError(
            f"the request has {size_bytes} bytes of text, allowed: {limits.max_request_bytes}; send fewer texts a "
            f"request, or serve with a larger {PREFIX}max_request_bytes"
        )
    decoded = [_decoded(column, name, limits) for name, column in zip(names, columns, strict=True)]
    rows: list[Text] = list(decoded[0]) if len(decoded) == 1 else list(zip(*decoded, strict=True))
    return Texts(rows, tuple(request.wanted), size_bytes)


def _column(tensors: Mapping[str, Array], name: str) -> list[bytes]:
    column = tensors[name]
    if column.ndim != 2 or column.shape[1] != 1 or not len(column):
        raise SessionError(f"'{name}' has shape {list(column.shape)}, allowed: [texts, 1]; send one text a row")
    texts: list[bytes] = column[:, 0].tolist()
    return texts


def _decoded(texts: list[bytes], name: str, limits: TokenizerParameters) -> list[str]:
    largest = max(map(len, texts))
    if largest > limits.max_text_bytes:
        at = next(at for at, text in enumerate(texts) if len(text) == largest)
        raise SessionError(
            f"'{name}' {at} has {largest} bytes, allowed: {limits.max_text_bytes}; send a shorter text, or serve with "
            f"a larger {PREFIX}max_text_bytes"
        )
    try:
        return [text.decode() for text in texts]
    except UnicodeDecodeError as error:
        at = texts.index(error.object)
        raise SessionError(f"'{name}' {at} is not UTF-8 ({error}); encode texts as UTF-8") from error

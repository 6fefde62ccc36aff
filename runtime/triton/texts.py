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
TRUNCATE = "truncate"
TRUNCATED = "truncated"
COLUMNS: Mapping[str, Callable[[Encoding], Sequence[int]]] = {
    "input_ids": lambda encoding: encoding.ids,
    "token_type_ids": lambda encoding: encoding.type_ids,
}
OUTPUTS = (*COLUMNS, SEQ_LENS, TRUNCATED)


@dataclass(frozen=True)
class Texts:
    """The texts of one request, the names of the outputs that its caller wants, and how large the texts are.

    `cut` says of every text whether it loses its end where it is too long; otherwise the request is refused.
    """

    rows: list[Text]
    cut: list[bool]
    wanted: Sequence[str]
    size_bytes: int


class TextTokenizer:
    """Tokenises the texts of many requests together.

    Args:
        file: the model's tokenizer.json.
        parameters: what becomes of long texts, and how large they may be.
        on_truncated: is told how many texts of an answered request have lost their ends.

    Raises:
        SessionError: no such file, not a tokenizer, or one with more ids than the model.
    """

    def __init__(
        self, file: Path, parameters: TokenizerParameters, on_truncated: Callable[[int], None] | None = None
    ) -> None:
        whole, cutting = read_tokenizer(file), read_tokenizer(file)
        token, largest = largest_id(whole)
        if 0 < parameters.vocabulary <= largest:
            raise SessionError(
                f"{file}: has ids up to {largest} ({token!a}), '{PREFIX}vocabulary' is {parameters.vocabulary}: it is "
                "another model's; copy the tokenizer.json that was saved with the model"
            )
        self._max_length = parameters.max_length
        self._limits = parameters
        self._on_truncated = on_truncated
        cutting.enable_truncation(parameters.max_length)
        self._tokenizers = {False: whole, True: cutting}

    def read(self, request: Request) -> Texts | Failure:
        """The texts of a request, checked and decoded, or the reason why it is refused."""
        return attempt(read_texts, request, self._limits)

    def answer(self, requests: Sequence[Texts | Failure]) -> list[Answer]:
        """Token ids, or the reason why there are none, for every request; all texts together."""
        readable = [texts for texts in requests if isinstance(texts, Texts)]
        flat = [text for texts in readable for text in texts.rows]
        encodings = iter(self._encode(flat, [cut for texts in readable for cut in texts.cut]))
        return [
            texts
            if isinstance(texts, Failure)
            else attempt(self._one, list(islice(encodings, len(texts.rows))), texts.wanted)
            for texts in requests
        ]

    def answer_aside(self, texts: Texts) -> Answer:
        """The answer to one request, its texts one after the other: other requests find threads of the library free."""
        # Not `encode`, which holds the interpreter up.
        encodings = [
            self._tokenizers[cut].encode_batch([text])[0] for text, cut in zip(texts.rows, texts.cut, strict=True)
        ]
        return attempt(self._one, encodings, texts.wanted)

    def _encode(self, texts: Sequence[Text], cut: Sequence[bool]) -> list[Encoding]:
        """Tokens of texts, of those that may be cut together and of the others."""
        found: dict[int, Encoding] = {}
        for wanted, tokenizer in self._tokenizers.items():
            places = [at for at, flag in enumerate(cut) if flag is wanted]
            found.update(zip(places, tokenizer.encode_batch([texts[at] for at in places]), strict=True))
        return [found[at] for at in range(len(texts))]

    def _one(self, encodings: Sequence[Encoding], wanted: Iterable[str]) -> dict[str, Array]:
        seq_lens = [len(encoding) for encoding in encodings]
        longest = max(seq_lens)
        if longest > self._max_length:
            raise SessionError(
                f"text {seq_lens.index(longest)} has {longest} tokens, allowed: {self._max_length}; send a shorter "
                f"text, let it be cut ('{TRUNCATE}'), or serve with {PREFIX}long_texts truncate"
            )
        truncated = [bool(encoding.overflowing) for encoding in encodings]
        if self._on_truncated is not None and any(truncated):
            self._on_truncated(sum(truncated))
        outputs: dict[str, Array] = {}
        for name in wanted:
            if name == SEQ_LENS:
                outputs[name] = np.array(seq_lens, dtype=np.int32)[:, None]
                continue
            if name == TRUNCATED:
                outputs[name] = np.array(truncated)[:, None]
                continue
            outputs[name] = np.zeros((len(encodings), longest), dtype=np.int32)
            for row, encoding in zip(outputs[name], encodings, strict=True):
                row[: len(encoding)] = COLUMNS[name](encoding)
        return outputs


def read_texts(request: Request, limits: TokenizerParameters) -> Texts:
    """The texts of one request, or its pairs of texts.

    Raises:
        SessionError: no texts, another shape, texts and second texts or flags that do not go together, texts larger
            than the limits, bytes that are not UTF-8.
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
    return Texts(rows, _cut(request.tensors, len(rows), limits), tuple(request.wanted), size_bytes)


def _cut(tensors: Mapping[str, Array], texts: int, limits: TokenizerParameters) -> list[bool]:
    """Which texts may be cut: what the request says, else what the model is configured for."""
    if TRUNCATE not in tensors:
        return [limits.long_texts == "truncate"] * texts
    column = tensors[TRUNCATE]
    if column.shape != (texts, 1):
        raise SessionError(
            f"'{TRUNCATE}' has shape {list(column.shape)}, allowed: [{texts}, 1]; send one value for each text"
        )
    flags: list[bool] = column[:, 0].tolist()
    return flags


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

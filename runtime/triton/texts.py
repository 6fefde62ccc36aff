# SPDX-License-Identifier: Apache-2.0
"""From texts to token ids: what TokenizerModel does, without the server."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Encoding, Tokenizer

from ..errors import SessionError
from .answers import Answer, Failure, Request, attempt
from .items import SEQ_LENS
from .parameters import PREFIX, TokenizerParameters

Array = npt.NDArray[Any]
Text = str | tuple[str, str]

TEXT = "text"
TEXT_PAIR = "text_pair"
COLUMNS: Mapping[str, Callable[[Encoding], Sequence[int]]] = {
    "input_ids": lambda encoding: encoding.ids,
    "token_type_ids": lambda encoding: encoding.type_ids,
}
OUTPUTS = (*COLUMNS, SEQ_LENS)


class TextTokenizer:
    """Tokenises the texts of many requests together.

    Args:
        file: the model's tokenizer.json.
        parameters: what becomes of long texts.

    Raises:
        SessionError: no such file, or not a tokenizer.
    """

    def __init__(self, file: Path, parameters: TokenizerParameters) -> None:
        if not file.is_file():
            raise SessionError(f"{file}: no such tokenizer; copy the model's tokenizer.json there")
        try:
            self._tokenizer = Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises plain Exception
            raise SessionError(f"{file}: not a tokenizer file ({error}); copy the model's tokenizer.json") from error
        self._max_length = parameters.max_length
        self._tokenizer.no_padding()
        if parameters.long_texts == "truncate":
            self._tokenizer.enable_truncation(parameters.max_length)
        else:
            self._tokenizer.no_truncation()

    def answer(self, requests: Sequence[Request]) -> list[Answer]:
        """Token ids, or the reason why there are none, for every request."""
        texts = [attempt(read_texts, request.tensors) for request in requests]
        flat = [text for rows in texts if not isinstance(rows, Failure) for text in rows]
        encodings = iter(self._tokenizer.encode_batch(flat))
        answers: list[Answer] = []
        for request, rows in zip(requests, texts, strict=True):
            if isinstance(rows, Failure):
                answers.append(rows)
            else:
                answers.append(attempt(self._one, list(islice(encodings, len(rows))), request.wanted))
        return answers

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


def read_texts(tensors: Mapping[str, Array]) -> list[Text]:
    """The texts of one request, or its pairs of texts.

    Raises:
        SessionError: another shape, texts and second texts that do not go together, bytes that are not UTF-8.
    """
    first = _decoded(tensors, TEXT)
    if TEXT_PAIR not in tensors:
        return list(first)
    second = _decoded(tensors, TEXT_PAIR)
    if len(first) != len(second):
        raise SessionError(
            f"'{TEXT_PAIR}' has {len(second)} texts, '{TEXT}' has {len(first)}; send one second text for each text"
        )
    return list(zip(first, second, strict=True))


def _decoded(tensors: Mapping[str, Array], name: str) -> list[str]:
    column = tensors[name]
    if column.ndim != 2 or column.shape[1] != 1 or not len(column):
        raise SessionError(f"'{name}' has shape {list(column.shape)}, allowed: [texts, 1]; send one text a row")
    texts: list[bytes] = column[:, 0].tolist()
    try:
        return [text.decode() for text in texts]
    except UnicodeDecodeError as error:
        at = texts.index(error.object)
        raise SessionError(f"'{name}' {at} is not UTF-8 ({error}); encode texts as UTF-8") from error

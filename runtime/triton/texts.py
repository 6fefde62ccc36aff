# SPDX-License-Identifier: Apache-2.0
"""From texts to token ids: what TokenizerModel does, without the server."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from padfree.contract.fields import Fields, decode
from padfree.contract.templates import Template, parse_template

from ..errors import SessionError
from ..rows import Array
from ..text.apart import Text, TextError
from ..text.checks import largest_id
from ..text.encoder import EncodedTexts
from ..text.inputs import positions_of
from ..text.json_files import read_bytes
from ..text.pairs import add_prompt
from ..text.tokenizer_file import TokenizerFile
from .answers import Failure, Reply, TritonRequest, attempt
from .items import SEQ_LENS
from .parameters import PREFIX, TokenizerParameters

TEXT = "text"
TEXT_PAIR = "text_pair"
TRUNCATE = "truncate"
TRUNCATED = "truncated"
OUTPUTS = ("input_ids", "token_type_ids", SEQ_LENS, TRUNCATED)
"""What an encoder with the usual names of inputs gets."""


@dataclass(frozen=True)
class Texts:
    """The texts of one request, the names of the outputs that its caller wants, and how large the texts are.

    `cut` says about every text whether it may be truncated; otherwise the request is refused if it is too long.
    """

    rows: list[Text]
    cut: list[bool]
    output_names: Sequence[str]
    size_bytes: int


class TextTokenizer:
    """Tokenises the texts of many requests together.

    Args:
        file: the model's tokenizer.json.
        parameters: what becomes of long texts, and how large they may be.
        on_truncated: is told how many texts of an answered request were truncated.

    Raises:
        SessionError: no such file, not a tokenizer, or one with more ids than the model.
    """

    def __init__(
        self, file: Path, parameters: TokenizerParameters, on_truncated: Callable[[int], None] | None = None
    ) -> None:
        side, types, template = parameters.truncation_side, parameters.token_types, _template(parameters)
        source = TokenizerFile(file, read_bytes(file), side, types, template=template)
        token, largest = largest_id(source.tokenizer())
        if 0 < parameters.vocabulary <= largest:
            raise SessionError(
                f"{file}: has ids up to {largest} ({token!a}), '{PREFIX}vocabulary' is {parameters.vocabulary}: it is "
                "another model's; copy the tokenizer.json that was saved with the model"
            )
        self._limits = parameters
        self._on_truncated = on_truncated
        self._encoder = source.encoder(parameters.max_length)
        self._prompt_tokens = self._encoder.prompt_tokens(parameters.prompt)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names that callers may ask for."""
        names = self._limits
        return names.ids, names.types, names.positions, names.prompt_length, SEQ_LENS, TRUNCATED

    def read(self, request: TritonRequest) -> Texts | Failure:
        """The texts of a request, checked and decoded, or the reason why it is refused."""
        return attempt(read_texts, request, self._limits)

    def answer(self, requests: Sequence[Texts | Failure]) -> list[Reply]:
        """Token ids, or the reason why there are none, for every request; all texts together."""
        readable = [texts for texts in requests if isinstance(texts, Texts)]
        try:
            encoded = self._encoder.encode([text for texts in readable for text in texts.rows])
        except TextError:
            return [texts if isinstance(texts, Failure) else attempt(self._answer_alone, texts) for texts in requests]
        parts = encoded.split([len(texts.rows) for texts in readable])
        return [
            texts if isinstance(texts, Failure) else attempt(self._answer_one, next(parts), texts) for texts in requests
        ]

    def answer_aside(self, texts: Texts) -> Reply:
        """The answer to one request, its texts one after the other: other requests find threads of the library free."""
        return attempt(
            self._answer_one, EncodedTexts.join([self._encoder.encode([text]) for text in texts.rows]), texts
        )

    def _answer_alone(self, texts: Texts) -> dict[str, Array]:
        return self._answer_one(self._encoder.encode(texts.rows), texts)

    def _answer_one(self, encoded: EncodedTexts, texts: Texts) -> dict[str, Array]:
        for at in np.flatnonzero(encoded.cut & ~np.array(texts.cut)).tolist():
            raise SessionError(
                f"text {at} has {self._encoder.full_length(texts.rows[at])} tokens, allowed: "
                f"{self._limits.max_length}; send a shorter text, let it be cut ('{TRUNCATE}'), or serve with "
                f"{PREFIX}long_texts truncate"
            )
        if self._on_truncated is not None and encoded.cut.any():
            self._on_truncated(int(encoded.cut.sum()))
        names = self._limits
        makers: Mapping[str, Callable[[], Array]] = {
            names.ids: lambda: _grid(encoded, encoded.ids),
            names.types: lambda: _grid(encoded, encoded.types),
            names.positions: lambda: _grid(encoded, positions_of(encoded.seq_lens)),
            names.prompt_length: lambda: np.full((encoded.seq_lens.size, 1), self._prompt_tokens, np.int32),
            SEQ_LENS: lambda: encoded.seq_lens[:, None],
            TRUNCATED: lambda: encoded.cut[:, None],
        }
        return {name: makers[name]() for name in texts.output_names}


def _template(parameters: TokenizerParameters) -> Template | None:
    """The template that config.pbtxt holds; SessionError where it holds something else."""
    if not parameters.template:
        return None
    name = f"config.pbtxt, '{PREFIX}template'"
    try:
        raw = decode(parameters.template)
    except ValueError as error:
        raise SessionError(f"{name}: not JSON ({error}); make the repository again") from error
    return parse_template(Fields(raw, name, error=SessionError))


def _grid(encoded: EncodedTexts, values: Array) -> Array:
    """Values [T] as rows with zeros after their ends."""
    is_token = np.arange(encoded.seq_lens.max()) < encoded.seq_lens[:, None]
    grid = np.zeros(is_token.shape, np.int32)
    grid[is_token] = values
    return grid


def read_texts(request: TritonRequest, limits: TokenizerParameters) -> Texts:
    """The texts of one request, or its pairs of texts.

    Raises:
        SessionError: no texts, another shape, texts and second texts or flags that do not go together, texts larger
            than the limits, bytes that are not UTF-8.
    """
    if TEXT not in request.tensors:
        raise SessionError(f"'{TEXT}' is missing; send one text per row, and '{TEXT_PAIR}' only beside it")
    names = [name for name in (TEXT, TEXT_PAIR) if name in request.tensors]
    if limits.pairs and len(names) == 1:
        raise SessionError(f"'{TEXT_PAIR}' is missing, and the model scores pairs; send a second text for each text")
    columns = [_column(request.tensors, name) for name in names]
    if len(columns[0]) != len(columns[-1]):
        raise SessionError(
            f"'{TEXT_PAIR}' has {len(columns[1])} texts, '{TEXT}' has {len(columns[0])}; send one second text for each "
            "text"
        )
    size_bytes = sum(map(len, (text for column in columns for text in column)))
    if size_bytes > limits.max_request_bytes:
        raise SessionError(
            f"the request has {size_bytes} bytes of text, allowed: {limits.max_request_bytes}; send fewer texts "
            f"per request, or serve with a larger {PREFIX}max_request_bytes"
        )
    decoded = [_decode(column, name, limits) for name, column in zip(names, columns, strict=True)]
    texts: Sequence[Text] = decoded[0] if len(decoded) == 1 else list(zip(*decoded, strict=True))
    rows = [add_prompt(text, limits.prompt) for text in texts]
    return Texts(rows, _cut(request.tensors, len(rows), limits), tuple(request.output_names), size_bytes)


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
        raise SessionError(f"'{name}' has shape {list(column.shape)}, allowed: [texts, 1]; send one text per row")
    texts: list[bytes] = column[:, 0].tolist()
    return texts


def _decode(texts: list[bytes], name: str, limits: TokenizerParameters) -> list[str]:
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

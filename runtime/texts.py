# SPDX-License-Identifier: Apache-2.0
"""Texts for a model that keeps its tokenizer beside it: prompt, tokens, and no more of them than the model takes."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from padfree.contract.metadata import Metadata
from padfree.contract.texts import TextInfo

from .errors import SessionError

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer

Text = str | tuple[str, str]

TOKENIZER_SUFFIX = ".tokenizer.json"
IDS, TYPES = "input_ids", "token_type_ids"
_WANTED = "the file that is wanted is the tokenizer.json that was saved with the model"


def tokenizer_path(model: Path) -> Path:
    """Where the tokenizer of a plan or .onnx file lies: model.plan -> model.plan.tokenizer.json."""
    return model.with_name(model.name + TOKENIZER_SUFFIX)


def read_tokenizer(file: Path) -> Tokenizer:
    """The tokenizer in a tokenizer.json, which pads nothing, and cuts nothing.

    Raises:
        SessionError: there is no such file, or it holds no tokenizer.
    """
    return plain(saved_tokenizer(file))


def saved_tokenizer(file: Path) -> Tokenizer:
    """The tokenizer in a tokenizer.json, which pads and cuts as the file says. Raises as read_tokenizer."""
    return _parsed(tokenizer_content(file), file)


def tokenizer_content(file: Path) -> bytes:
    """What a tokenizer.json holds, read once: who checks it and uses it later keeps these bytes, not the path.

    Raises:
        SessionError: there is no such file, or it cannot be read.
    """
    if not file.is_file():
        raise SessionError(f"{file}: no such tokenizer; {_WANTED}")
    try:
        return file.read_bytes()
    except OSError as error:
        raise SessionError(f"{file}: cannot be read ({error.strerror}); check its permissions") from error


def parse_tokenizer(content: bytes, source: Path) -> Tokenizer:
    """As read_tokenizer, of what such a file holds; `source` is named in messages."""
    return plain(_parsed(content, source))


def plain(tokenizer: Tokenizer) -> Tokenizer:
    """The tokenizer itself, which pads nothing and cuts nothing any more."""
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def _parsed(content: bytes, source: Path) -> Tokenizer:
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_buffer(content)
    except Exception as error:  # the library raises plain Exception
        raise SessionError(f"{source}: not a tokenizer file ({error}); {_WANTED}") from error


def largest_id(tokenizer: Tokenizer) -> tuple[str, int]:
    """The token with the largest id of a vocabulary, added tokens among them, and that id; -1 where there is none."""
    vocabulary: dict[str, int] = tokenizer.get_vocab(with_added_tokens=True)
    return max(vocabulary.items(), key=lambda item: item[1], default=("", -1))


@dataclass(frozen=True)
class Tokens:
    """Token inputs of some texts, as `Session.run` takes them: name -> a list of integers a text.

    seq_lens: tokens of every text.
    cut: how many of the texts were longer than the model takes, and have lost their ends.
    """

    request: dict[str, list[list[int]]]
    seq_lens: list[int]
    cut: int


def kept_tokenizer(model: Path, metadata: Metadata) -> Tokenizer:
    """The tokenizer that a plan or .onnx file keeps beside it, as read_tokenizer gives it. Raises as kept_content."""
    return parse_tokenizer(kept_content(model, metadata), tokenizer_path(model))


def kept_content(model: Path, metadata: Metadata) -> bytes:
    """What the tokenizer.json holds that a plan or .onnx file keeps beside it, checked.

    Raises:
        SessionError: the model keeps none, or it is not there, or another one.
    """
    info = metadata.text
    if info is None or info.tokenizer_sha256 is None:
        raise SessionError(
            f"{model}: keeps no tokenizer, as models that were made of a folder do; pass --tokenizer "
            "tokenizer.json (beside the model on the Hub), or build it from the model's folder"
        )
    file = tokenizer_path(model)
    content = tokenizer_content(file)
    if hashlib.sha256(content).hexdigest() != info.tokenizer_sha256:
        raise SessionError(
            f"{file}: not the tokenizer that the model was made with; copy the file that was written beside it, or "
            "build the model again"
        )
    return content


def unknown_prompt(name: str, prompts: Collection[str]) -> str:
    """What is wrong with the name of a prompt that is none of a model's."""
    if not prompts:
        return f"prompt '{name}': the model has no prompts; leave it out, or write the prompt into the texts"
    return f"prompt '{name}', the model's are {', '.join(prompts)}; choose one of them"


class TextReader:
    """Makes tokens of texts as the folder says that the model came from. Threads may share one.

    Args:
        model: the plan or rewritten .onnx file; the tokenizer lies beside it.
        metadata: the model's own.

    Attributes:
        info: what the folder said.
        max_length: most tokens of a text, special tokens included; None: any number.

    Raises:
        SessionError: the model keeps no tokenizer, or it is not there, or another one.
    """

    def __init__(self, model: Path, metadata: Metadata) -> None:
        self._tokenizer = kept_tokenizer(model, metadata)
        info = metadata.text
        assert info is not None  # kept_tokenizer refuses models without it
        limits = [limit for limit in (info.max_length, metadata.longest) if limit is not None]
        self.info: TextInfo = info
        self.max_length = min(limits, default=None)
        self._names = {item.original_name for item in metadata.token_inputs()}
        self._ids = metadata.ids_input().original_name
        if self.max_length is not None:
            self._tokenizer.enable_truncation(self.max_length)

    def read(
        self, texts: Sequence[Text], *, prompt_name: str | None = None, prompt: str | None = None, cut: bool = True
    ) -> Tokens:
        """Tokens of texts, or of pairs of texts.

        Args:
            texts: any number of them.
            prompt_name: the prompt to put in front, by its name; None: the model's default.
            prompt: the prompt itself, instead of a name; "" for none.
            cut: whether longer texts lose their ends, as they do in sentence-transformers, or are an error.

        Raises:
            SessionError: no such prompt, a prompt with pairs, or a text that is too long and is not to be cut.
        """
        front = self._prompt(prompt_name) if prompt is None else prompt
        if front:
            if any(isinstance(text, tuple) for text in texts):
                raise SessionError("a prompt stands in front of single texts, not of pairs; leave it out")
            texts = [f"{front}{text}" for text in texts]
        encodings = self._tokenizer.encode_batch(list(texts))
        overflowing = [at for at, encoding in enumerate(encodings) if encoding.overflowing]
        if overflowing and not cut:
            raise SessionError(
                f"text {overflowing[0]} has more than {self.max_length} tokens, the most that the model takes; send a "
                "shorter text, or let long ones be cut"
            )
        return Tokens(self.columns(encodings), [len(encoding) for encoding in encodings], len(overflowing))

    def columns(self, encodings: Sequence[Encoding]) -> dict[str, list[list[int]]]:
        """The model's token inputs out of encodings."""
        columns: dict[str, Any] = {self._ids: [encoding.ids for encoding in encodings]}
        if TYPES in self._names:
            columns[TYPES] = [encoding.type_ids for encoding in encodings]
        return columns

    def _prompt(self, name: str | None) -> str:
        chosen = self.info.default_prompt if name is None else name
        if chosen is None:
            return ""
        if chosen not in self.info.prompts:
            raise SessionError(unknown_prompt(chosen, self.info.prompts))
        return self.info.prompts[chosen]

# SPDX-License-Identifier: Apache-2.0
"""Texts for a model that keeps its tokenizer beside it: prompt and tokens, at most as many as the model takes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from padfree.contract.late_interaction import DOCUMENT
from padfree.contract.metadata import Metadata
from padfree.contract.texts import FEATURES, TextInfo

from .errors import SessionError
from .text.apart import Text, TextError
from .text.checks import largest_id
from .text.encoder import EncodedTexts
from .text.inputs import TextInputs
from .text.json_files import read_bytes
from .text.late import in_role
from .text.pairs import add_prompt, prompt_advice
from .text.source import kept_content, text_source, tokenizer_path
from .text.tokenizer_file import TYPES, parse, plain

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer

__all__ = [
    "IDS",
    "TYPES",
    "PackedTexts",
    "Text",
    "TextReader",
    "Tokens",
    "kept_content",
    "largest_id",
    "parse_tokenizer",
    "read_tokenizer",
    "tokenizer_path",
    "unknown_prompt",
]

IDS = "input_ids"
PORTION = 8192
"""Texts that are tokenised in one step, which takes a fraction of a second."""


def read_tokenizer(file: Path) -> Tokenizer:
    """The tokenizer in a tokenizer.json alone, which neither pads nor truncates.

    Raises:
        SessionError: there is no such file, or it holds no tokenizer.
    """
    return parse_tokenizer(read_bytes(file), file)


def parse_tokenizer(content: bytes, source: Path) -> Tokenizer:
    """As read_tokenizer, from the content of such a file; `source` is its name in messages."""
    return plain(parse(content, source))


@dataclass(frozen=True)
class PackedTexts:
    """Inputs of some texts, as `Session.run_packed` takes them.

    Attributes:
        columns: name in the original model -> int32 [T] of tokens, [B] of sequences.
        seq_lens: int32 [B], tokens of every text.
        cut: bool [B], whether a text was longer than the model takes and lost an end.
    """

    columns: dict[str, Any]
    seq_lens: Any
    cut: Any


@dataclass(frozen=True)
class Tokens:
    """Inputs of some texts, as `Session.run` takes them: name -> a list of integers per text.

    Attributes:
        request: these lists.
        seq_lens: tokens of every text.
        cut: how many texts were longer than the model takes and lost an end.
    """

    request: dict[str, list[Any]]
    seq_lens: list[int]
    cut: int


def unknown_prompt(name: str, prompts: Collection[str]) -> str:
    """The message for the name of a prompt that the model does not have."""
    return f"prompt '{name}': {prompt_advice(prompts)}"


class TextReader:
    """Makes tokens of texts as the model's folder says. Threads may share one.

    Args:
        model: the plan or rewritten .onnx file; the tokenizer lies beside it.
        metadata: the model's own.
        tokenizer: a tokenizer.json to use instead of that one, with the tokenizer_config.json beside it.
        truncate: whether texts are cut to the model's positions; only for models that were not made from a folder.
        on_texts: is called after every portion of texts, with its numbers of texts and tokens.

    Attributes:
        info: what the folder said.
        max_length: most tokens of a text, special tokens included; None: any number.
        truncation_side: the end that longer texts lose, "right" or "left".

    Raises:
        SessionError: the tokenizer is missing or another model's, or texts do not provide all inputs of the model.
    """

    def __init__(
        self,
        model: Path,
        metadata: Metadata,
        tokenizer: Path | None = None,
        *,
        truncate: bool = True,
        on_texts: Callable[[int, int], object] = lambda _texts, _tokens: None,
    ) -> None:
        source = text_source(model, metadata, tokenizer)
        info = metadata.text
        limits = [limit for limit in (None if info is None else info.max_length, metadata.longest) if limit is not None]
        self.info: TextInfo = info or TextInfo(FEATURES)
        self.max_length = min(limits, default=None) if info is not None or truncate else None
        self.truncation_side = source.truncation_side
        self._inputs = TextInputs(metadata, str(model))
        self._encoder = source.encoder(self.max_length)
        self._on_texts = on_texts

    def read(
        self, texts: Sequence[Text], *, prompt_name: str | None = None, prompt: str | None = None, cut: bool = True
    ) -> Tokens:
        """Tokens of texts, or of pairs of texts.

        Args:
            texts: any number of them.
            prompt_name: the prompt to put in front, of the first texts of pairs; None: the model's default.
            prompt: the prompt itself, instead of a name; "" for none.
            cut: whether longer texts lose an end, as they do in sentence-transformers, or are an error.

        Raises:
            SessionError: there is no such prompt, a single text is given to a model that takes pairs, or a text is too
                long and is not to be cut.
        """
        encoded, prompt_tokens = self._encode(texts, prompt_name, prompt, cut)
        return Tokens(self._inputs.rows(encoded, prompt_tokens), encoded.seq_lens.tolist(), int(encoded.cut.sum()))

    def read_packed(
        self, texts: Sequence[Text], *, prompt_name: str | None = None, prompt: str | None = None, cut: bool = True
    ) -> PackedTexts:
        """As `read`, but in arrays that hold the tokens of all texts."""
        encoded, prompt_tokens = self._encode(texts, prompt_name, prompt, cut)
        return PackedTexts(self._inputs.columns(encoded, prompt_tokens), encoded.seq_lens, encoded.cut)

    def encodings(self, texts: Sequence[str]) -> list[Encoding]:
        """What the tokenizers library makes of single texts without a prompt, with words and offsets."""
        return self._encoder.encodings(texts)

    def most_of(self, prompt_name: str | None) -> int | None:
        """Most tokens of texts with this prompt, special tokens included; None: any number."""
        if self.info.late is None:
            return self.max_length
        return self._encoder.most_of(in_role([""], prompt_name or DOCUMENT)[0])

    def _encode(
        self, texts: Sequence[Text], prompt_name: str | None, prompt: str | None, cut: bool
    ) -> tuple[EncodedTexts, int]:
        """Tokens, and how many of each text are its prompt's."""
        front = self._prompt(prompt_name) if prompt is None else prompt
        if self.info.refuses_single_texts and any(isinstance(text, str) for text in texts):
            raise SessionError(
                "a text by itself, and the model scores pairs; give pairs of texts: ('query', 'document') from Python, "
                "--text with --text-pair on the command line"
            )
        if front:
            texts = [add_prompt(text, front) for text in texts]
        if prompt is None and self.info.late is not None:
            texts = in_role(texts, prompt_name or self.info.default_prompt or "")
        encoded = self._tokenise(texts)
        if encoded.cut.any() and not cut:
            at = int(encoded.cut.argmax())
            raise SessionError(
                f"text {at} has more than {self._encoder.most_of(texts[at])} tokens, the most that the model takes; "
                "send a shorter text, or let long ones be cut"
            )
        return encoded, self._encoder.prompt_tokens(front) if self._inputs.leaves_out_prompts else 0

    def _tokenise(self, texts: Sequence[Text]) -> EncodedTexts:
        """Tokens of texts, a portion at a time: signals are handled between two portions."""
        parts = []
        for first in range(0, max(1, len(texts)), PORTION):
            try:
                part = self._encoder.encode(texts[first : first + PORTION])
            except TextError as error:
                raise TextError(first + error.text, error.reason) from None
            self._on_texts(part.seq_lens.size, int(part.seq_lens.sum()))
            parts.append(part)
        return parts[0] if len(parts) == 1 else EncodedTexts.join(parts)

    def _prompt(self, name: str | None) -> str:
        prompt_name = self.info.default_prompt if name is None else name
        if prompt_name is None:
            return ""
        if prompt_name not in self.info.prompts:
            raise SessionError(unknown_prompt(prompt_name, self.info.prompts))
        return self.info.prompts[prompt_name]

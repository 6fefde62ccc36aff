# SPDX-License-Identifier: Apache-2.0
"""Ids and token types of texts and pairs: looked up word by word where that is possible, by `tokenizers` otherwise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from padfree.contract.texts import RIGHT

from ..rows import Int32Array, bounds_of
from ..word_table import LookUpResult
from .apart import Apart, Text, TextError
from .templates import TemplateEncoder
from .word_pieces import WordPieces

if TYPE_CHECKING:
    from padfree.contract.templates import Template
    from tokenizers import Encoding, Tokenizer

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class EncodedTexts:
    """Tokens of some texts, one text after the other.

    Attributes:
        ids: int32 [T].
        types: int32 [T]; zeros where texts have no token types.
        seq_lens: int32 [B], tokens of each text.
        cut: bool [B], whether a text was longer, and lost an end.
    """

    ids: Int32Array
    types: Int32Array
    seq_lens: Int32Array
    cut: Flags

    def rows(self, values: Int32Array) -> list[Int32Array]:
        """Values [T], as an array per text."""
        return np.split(values, bounds_of(self.seq_lens)[1:-1]) if self.seq_lens.size else []

    @classmethod
    def of_ids(cls, rows: Sequence[Sequence[int]]) -> EncodedTexts:
        """The tokens for a caller's own ids. Raises OverflowError for ids of more than 32 bits."""
        seq_lens = np.fromiter(map(len, rows), np.int32, len(rows))
        ids = np.fromiter(chain.from_iterable(rows), np.int32, int(seq_lens.sum()))
        return cls(ids, np.zeros_like(ids), seq_lens, np.zeros(len(rows), np.bool_))

    @classmethod
    def join(cls, parts: Sequence[EncodedTexts]) -> EncodedTexts:
        """The texts of several, one or more, in their order."""
        columns = ([getattr(part, name) for part in parts] for name in ("ids", "types", "seq_lens", "cut"))
        return cls(*(np.concatenate(column) for column in columns))

    def without_empty(self) -> EncodedTexts:
        """Without the texts that have no tokens."""
        has_tokens = self.seq_lens > 0
        return EncodedTexts(self.ids, self.types, self.seq_lens[has_tokens], self.cut[has_tokens])

    def split(self, sizes: Sequence[int]) -> Iterator[EncodedTexts]:
        """The texts of several callers, so many each."""
        texts = bounds_of(sizes)
        tokens = bounds_of(self.seq_lens)[texts]
        for (first, last), (start, stop) in zip(pairwise(texts.tolist()), pairwise(tokens.tolist()), strict=True):
            yield EncodedTexts(
                self.ids[start:stop], self.types[start:stop], self.seq_lens[first:last], self.cut[first:last]
            )


class TextEncoder:
    """Makes tokens of texts, or of pairs of texts. Threads may share one.

    Args:
        tokenizer: without padding; the encoder owns it from now on.
        most: tokens of a text or pair, special tokens included; longer ones are cut. None: any number.
        side: the end that longer texts lose, "right" or "left".
        token_types: whether texts have token types.
        template: what stands around pairs; then there are no texts by themselves.

    Raises:
        SessionError: `most` leaves a template's texts no room.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        most: int | None,
        *,
        side: str = RIGHT,
        token_types: bool = True,
        template: Template | None = None,
    ) -> None:
        self._tokenizer, self._side, self._token_types = tokenizer, side, token_types
        tokenizer.no_truncation()
        self._template = None if template is None else TemplateEncoder(tokenizer, template, side)
        self._apart = Apart.of(tokenizer)
        words = WordPieces.of(tokenizer) if template is None else None
        # Those know no types of single texts but 0.
        self._words = words if words is None or not any(tokenizer.encode("a").type_ids) else None
        self.cut_to(most)

    def cut_to(self, most: int | None) -> None:
        """Cuts texts to another number of tokens from now on; None: to none."""
        self.most = most
        if self._template is not None:
            self._template.check_room(most)
        elif most is None:
            self._tokenizer.no_truncation()
        else:
            self._tokenizer.enable_truncation(most, direction=self._side)

    def most_of(self, _text: Text) -> int | None:
        """Most tokens of this text; None: any number."""
        return self.most

    def types_are_zeros(self, *, pairs: bool) -> bool:
        """Whether all token types are 0: of single texts, or of pairs."""
        return not self._token_types or (not pairs and not any(self._tokenizer.encode("a").type_ids))

    def look_up(self, texts: Sequence[Text]) -> EncodedTexts | None:
        """Tokens of plain texts, so quickly that an event loop may wait; None where `encode` has to make them."""
        lookup = self._look_up_words(texts)
        return None if lookup is None or lookup[0].rows_left else self._encode_rows(*lookup)

    def encode(self, texts: Sequence[Text]) -> EncodedTexts:
        """Tokens of texts, or of pairs of texts, in their order.

        Raises:
            TextError: a text holds halves of characters, or takes too much time or memory, the latter only of
                tokenizers that may explode.
        """
        lookup = self._look_up_words(texts)
        result, cut = lookup or (LookUpResult.of_rows([None] * len(texts)), np.zeros(len(texts), np.bool_))
        if rows_left := result.rows_left:
            try:
                rows = self._encode([texts[at] for at in rows_left])
            except TextError as error:
                raise TextError(rows_left[error.text], error.reason) from None
            except TypeError:
                unfit = next((at for at in rows_left if not _is_unicode(texts[at])), None)
                if unfit is None:
                    raise
                reason = "holds half of a character (a lone surrogate, U+D800 to U+DFFF); send whole characters"
                raise TextError(unfit, reason) from None
            cut[rows_left] = [is_cut for *_, is_cut in rows]
            result = result.complete([(ids, types) for ids, types, _ in rows])
        return self._encode_rows(result, cut)

    def encodings(self, texts: Sequence[str]) -> list[Encoding]:
        """What the tokenizers library makes of single texts that `encode` has taken, with words and offsets."""
        return list(self._tokenizer.encode_batch(list(texts)))

    def full_length(self, text: Text) -> int:
        """Tokens of a text that is not cut."""
        if self._template is not None:
            return len(self._template.encode(_pairs([text]), None)[0][0])
        if self._apart is not None:
            return len(self._apart.rows([text], None, self._side)[0].ids)
        whole = type(self._tokenizer).from_str(self._tokenizer.to_str())
        whole.no_truncation()
        return len(whole.encode(*([text] if isinstance(text, str) else text)))

    def prompt_tokens(self, prompt: str) -> int:
        """How many tokens of a text are its prompt's, as sentence-transformers counts them; 0 for no prompt.

        These are the prompt's by itself, without a special token at the end.
        """
        if not prompt:
            return 0
        if self._apart is not None:
            (row,) = self._apart.rows([prompt], self.most, self._side)
            return len(row.ids) - row.ends_special
        alone = self._tokenizer.encode(prompt)
        return len(alone) - (1 if alone.special_tokens_mask and alone.special_tokens_mask[-1] else 0)

    def _encode(self, texts: Sequence[Text]) -> list[tuple[list[int], list[int], bool]]:
        """Ids and types of texts, and whether they are cut, as the library makes them."""
        if self._template is not None:
            return self._template.encode(_pairs(texts), self.most)
        if self._apart is not None:
            return [(row.ids, row.types, row.cut) for row in self._apart.rows(texts, self.most, self._side)]
        encodings = self._tokenizer.encode_batch_fast(texts)
        return [(encoding.ids, encoding.type_ids, bool(encoding.overflowing)) for encoding in encodings]

    def _look_up_words(self, texts: Sequence[Text]) -> tuple[LookUpResult, Flags] | None:
        """Tokens of texts by their words, and which texts are cut; None where words are not looked up."""
        if self._words is None or not texts:
            return None
        cut = np.zeros(len(texts), np.bool_)
        if self._side != RIGHT:
            result = self._words.look_up(texts)
            return (result.without(result.counts > self.most) if self.most is not None else result), cut
        result = self._words.look_up(texts, self.most)
        # Pairs that are too long are left to the library, and texts that fill their room may have been longer.
        full = [at for at in np.flatnonzero(result.counts == self.most).tolist() if isinstance(texts[at], str)]
        if full and self.most is not None:
            cut[full] = self._words.look_up([texts[at] for at in full], self.most + 1).counts > self.most
        return result, cut

    def _encode_rows(self, result: LookUpResult, cut: Flags) -> EncodedTexts:
        types = result.types if self._token_types else np.zeros_like(result.ids)
        return EncodedTexts(result.ids, types, result.counts, cut)


def _pairs(texts: Sequence[Text]) -> list[tuple[str, str]]:
    """Pairs; TextError for a text by itself."""
    pairs = [text for text in texts if not isinstance(text, str)]
    if len(pairs) < len(texts):
        alone = next(at for at, text in enumerate(texts) if isinstance(text, str))
        raise TextError(
            alone, "is a text by itself, and the model's template has a query and a document; send pairs of texts"
        )
    return pairs


def _is_unicode(text: Text) -> bool:
    try:
        "".join(text).encode()
    except UnicodeEncodeError:
        return False
    return True

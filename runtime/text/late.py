# SPDX-License-Identifier: Apache-2.0
"""Tokens of queries and documents, for models with a vector for every token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from padfree.contract.late_interaction import QUERY, LateInteraction

from ..errors import SessionError
from ..rows import Array, bounds_of, ranges
from .apart import Text, TextError
from .encoder import EncodedTexts, TextEncoder

if TYPE_CHECKING:
    from tokenizers import Tokenizer


Encode = Callable[[Sequence[Text]], EncodedTexts | None]
Indices = npt.NDArray[np.int64]


class Query(str):
    """A text that is a query, where models read queries in another way than documents."""

    __slots__ = ()


def in_role(texts: Sequence[Text], role: str) -> list[Text]:
    """Texts as queries or documents, one of padfree.contract.late_interaction.ROLES."""
    return [Query(text) for text in texts if isinstance(text, str)] if role == QUERY else list(texts)


class LateEncoder(TextEncoder):
    """Makes tokens of texts as `late` says: of a `Query` those of a query, of any other text those of a document.

    Args:
        tokenizers: two of the same, for documents and for queries; the encoder owns them from now on.
        late: how texts are read.
        most: tokens of a document, if the model takes fewer than `late` says; None: any number.
        side: the end that longer texts lose, "right" or "left".
        token_types: whether texts have token types.

    Raises:
        SessionError: the model takes fewer tokens than queries are filled up to.
    """

    def __init__(
        self,
        tokenizers: tuple[Tokenizer, Tokenizer],
        late: LateInteraction,
        most: int | None,
        *,
        side: str,
        token_types: bool,
    ) -> None:
        lengths = [late.document_length, late.query_length]
        if most is not None and late.expansion is not None and most < late.query_length:
            raise SessionError(
                f"queries are filled up to {late.query_length} tokens, and {most} are the most of a text; build the "
                f"engine for {late.query_length} or more, or leave --max-length out"
            )
        markers = (late.document_marker, late.query_marker)
        self._most = tuple(min(length, most or length) for length in lengths)
        rooms = [length - (marker is not None) for length, marker in zip(self._most, markers, strict=True)]
        super().__init__(tokenizers[0], rooms[0], side=side, token_types=token_types)
        self._queries = TextEncoder(tokenizers[1], rooms[1], side=side, token_types=token_types)
        self._late = late

    def most_of(self, text: Text) -> int:
        """As `TextEncoder.most_of`, with the marker."""
        return self._most[isinstance(text, Query)]

    def look_up(self, texts: Sequence[Text]) -> EncodedTexts | None:
        """As `TextEncoder.look_up`."""
        return self._read(texts, super().look_up, self._queries.look_up)

    def encode(self, texts: Sequence[Text]) -> EncodedTexts:
        """Tokens of queries and documents, in their order.

        Raises:
            TextError: a text is a pair, or `TextEncoder` makes no tokens of it.
        """
        encoded = self._read(texts, super().encode, self._queries.encode)
        assert encoded is not None
        if not encoded.seq_lens.all():
            raise TextError(int(encoded.seq_lens.argmin()), "has no tokens; send one that has some")
        return encoded

    def _read(self, texts: Sequence[Text], of_documents: Encode, of_queries: Encode) -> EncodedTexts | None:
        """Tokens by these functions; None where one gives none."""
        are_queries = np.fromiter((isinstance(text, Query) for text in texts), np.bool_, len(texts))
        order = np.argsort(are_queries, kind="stable")  # documents first
        plain_texts: list[Text] = [self._strip(at, texts[at]) for at in order.tolist()]
        count = len(texts) - int(are_queries.sum())
        documents = self._ask(of_documents, plain_texts[:count], order[:count])
        if documents is not None:
            documents = _insert(documents, self._late.document_marker)
        if documents is None or count == len(texts):
            return documents
        queries = self._ask(of_queries, plain_texts[count:], order[count:])
        if queries is None:
            return None
        queries = self._expand(_insert(queries, self._late.query_marker))
        return _in_order(EncodedTexts.join([documents, queries]), np.argsort(order))

    def _ask(self, make: Encode, texts: list[Text], order: Indices) -> EncodedTexts | None:
        """Tokens of texts that have these indices, which errors name."""
        if not texts:
            return EncodedTexts.of_ids([])
        try:
            return make(texts)
        except TextError as error:
            raise TextError(int(order[error.text]), error.reason) from None

    def _strip(self, at: int, text: Text) -> str:
        """A text without blanks around it, as PyLate takes it."""
        if not isinstance(text, str):
            raise TextError(at, "is a pair of texts, and the model reads queries and documents by themselves")
        return text.strip()

    def _expand(self, queries: EncodedTexts) -> EncodedTexts:
        """Queries filled with mask tokens."""
        late = self._late
        if late.expansion is None:
            return queries
        lens = queries.seq_lens
        is_own = np.arange(late.query_length) < lens[:, None]
        ids = np.full(is_own.shape, late.expansion, np.int32)
        types = np.zeros_like(ids)
        ids[is_own], types[is_own] = queries.ids, queries.types
        return EncodedTexts(ids.reshape(-1), types.reshape(-1), np.full_like(lens, late.query_length), queries.cut)


def _insert(encoded: EncodedTexts, marker: int | None) -> EncodedTexts:
    """Texts with a marker after their first token."""
    if marker is None:
        return encoded
    at = bounds_of(encoded.seq_lens)[:-1] + np.minimum(encoded.seq_lens, 1)
    ids, types = (np.insert(values, at, value) for values, value in ((encoded.ids, marker), (encoded.types, 0)))
    return EncodedTexts(ids, types, encoded.seq_lens + np.int32(1), encoded.cut)


def _in_order(encoded: EncodedTexts, order: Indices) -> EncodedTexts:
    """The texts with these indices, one after the other."""
    seq_lens = encoded.seq_lens[order]
    at = ranges(bounds_of(encoded.seq_lens)[order], seq_lens)
    return EncodedTexts(encoded.ids[at], encoded.types[at], seq_lens, encoded.cut[order])


def kept_tokens(late: LateInteraction, ids: Array, seq_lens: Array, are_queries: Array) -> Array:
    """Which tokens' vectors count, bool [T]: all of queries, and of documents those that are not in its skiplist.

    Args:
        late: how texts are read.
        ids: int32 [T].
        seq_lens: int32 [B].
        are_queries: bool [B].
    """
    return np.repeat(are_queries, seq_lens) | ~np.isin(ids, np.asarray(late.skiplist, np.int64))

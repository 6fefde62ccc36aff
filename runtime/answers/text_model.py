# SPDX-License-Identifier: Apache-2.0
"""An opened model's answers to texts: the layer between texts and `Session`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, overload

import numpy as np
from padfree.contract import texts as contract
from padfree.contract.metadata import OutputInfo

from ..chunks import OnChunk
from ..errors import SessionError
from ..rows import Array
from ..session import Session
from ..text.apart import Text
from ..text.late import Query
from ..texts import TextReader
from .keywords import advise
from .max_sim import PairScores, token_vectors
from .scores import Classification, Floats, check_top, classify, normalize_vectors
from .tags import TaggedSpan, join, words_of
from .text_runs import OnTokens, TextRuns, Values

VECTORS, SCORES, LOGITS = contract.OUTPUTS[contract.SENTENCES], contract.OUTPUTS[contract.PAIRS], "logits"
ENCODE, SCORE, CLASSIFY, TAG, TOKENS = "encode", "rerank", "classify", "tag", "tokens"
LATE = "encode_document"
"""What a model is for: the method that answers."""
NOTHING: Values = MappingProxyType({})
_DOES: Mapping[str, str] = MappingProxyType(
    {
        ENCODE: "makes vectors",
        SCORE: "compares two texts",
        CLASSIFY: "has labels for texts",
        TAG: "has labels for words",
        LATE: "makes a vector for every token",
    }
)


@dataclass(frozen=True)
class RankedDocument:
    """A document's index in the list that was passed, and its score."""

    index: int
    score: float


@dataclass(frozen=True)
class TokenRows:
    """A text's tokens.

    Attributes:
        tokens: as the tokenizer writes them, special tokens included.
        offsets: where each is in the text, in characters: its start and its end; (0, 0) for special tokens.
        vectors: float32 [len, E], the model's row for each token; None: it gives none.
    """

    tokens: tuple[str, ...]
    offsets: tuple[tuple[int, int], ...]
    vectors: Floats | None


class TextModel:
    """Texts in, answers out. Any number of threads may call it.

    Args:
        session: runs the model.
        path: its file; the tokenizer lies beside it.
        tokenizer: a tokenizer.json to use instead of that one.
        shown_path: what the model is called in messages.
        truncate: whether texts are cut to the model's positions; only for models that were not made from a folder.
        on_texts: is called after every portion of texts that was tokenised, with its numbers of texts and tokens.
        on_tokens: is called with the tokens of all texts of a call before they run.
        on_chunk: is called after every chunk of texts that has run, with its numbers of texts and tokens.

    Raises:
        SessionError: the tokenizer is missing or another model's, or texts do not provide all inputs of the model.
    """

    def __init__(
        self,
        session: Session,
        path: Path,
        tokenizer: Path | None = None,
        *,
        shown_path: str | None = None,
        truncate: bool = True,
        on_texts: OnChunk = lambda _texts, _tokens: None,
        on_tokens: OnTokens = lambda _reader, _tokens: None,
        on_chunk: OnChunk = lambda _texts, _tokens: None,
    ) -> None:
        self._reader = TextReader(path, session.metadata, tokenizer, truncate=truncate, on_texts=on_texts)
        self._shown_path = shown_path or str(path)
        self._runs = TextRuns(session, self._reader, self._shown_path, on_tokens, on_chunk)
        self._metadata = session.metadata
        self._outputs = {item.name: item for item in session.metadata.outputs}

    @property
    def kind(self) -> str:
        """What the model is for: the name of the method that answers."""
        scores, logits = self._scores(), self._outputs.get(LOGITS)
        if self.info.late is not None:
            return LATE
        if VECTORS in self._outputs:
            return ENCODE
        if scores is not None:
            return SCORE if self.info.takes_pairs and scores.shape and scores.shape[-1] == 1 else CLASSIFY
        is_tagger = logits is not None and logits.has_token_rows and self.info.task == contract.TOKENS
        return TAG if is_tagger else TOKENS

    @property
    def info(self) -> contract.TextInfo:
        """What the model's folder says about texts."""
        return self._reader.info

    @advise
    def encode(
        self,
        texts: str | Sequence[str],
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        normalize: bool | None = None,
        inputs: Values = NOTHING,
    ) -> Floats:
        """A vector for every text, float32 [B, E]; [E] for a single text.

        Args:
            texts: any number of them; texts that are too long for the model are truncated.
            prompt_name: the prompt to put in front, of those that the model keeps; None: its default.
            prompt: the prompt itself; "" for none.
            normalize: whether vectors have length 1; None: as the model's folder says.
            inputs: other inputs of the model with a row per text, by name.

        Raises:
            SessionError: the model gives no vectors of texts, or does not take a text or the prompt.
        """
        output = self._outputs.get(VECTORS)
        if output is None:
            raise SessionError(f"{self._shown_path}: gives no vectors of texts, {self._what_it_gives()}")
        if normalize is False and self.info.normalize:
            raise SessionError(
                f"{self._shown_path}: the model itself normalizes its vectors to length 1; build it again without that "
                "(--no-normalize; padfree.Model(..., normalize=False) with a folder)"
            )
        if not isinstance(prompt, str | None):
            raise SessionError(f"prompt is {_value_text(prompt)}, allowed: a text; '' stands for none")
        many = _as_list(texts)
        tokens = self._reader.read_packed(many, prompt_name=prompt_name, prompt=prompt)
        vectors = self._runs.array(output, tokens, inputs)
        vectors = normalize_vectors(vectors) if normalize else vectors
        return vectors[0] if isinstance(texts, str) else vectors

    @overload
    def encode_query(self, texts: str, *, inputs: Values = NOTHING) -> Floats: ...  # type: ignore[overload-overlap]

    @overload
    def encode_query(self, texts: Sequence[str], *, inputs: Values = NOTHING) -> list[Floats]: ...

    def encode_query(self, texts: str | Sequence[str], *, inputs: Values = NOTHING) -> Floats | list[Floats]:
        """A vector for every token of a query, float32 [tokens, N], for models such as ColBERT.

        Args:
            texts: any number of queries; a list of arrays comes back, and of a single text one array.
            inputs: other inputs of the model with a row per text, by name.

        Raises:
            SessionError: the model has no vectors of tokens, or does not take a text.
        """
        vectors = self._vectors_of([Query(text) for text in _as_list(texts)], inputs)
        return vectors[0] if isinstance(texts, str) else vectors

    @overload
    def encode_document(self, texts: str, *, inputs: Values = NOTHING) -> Floats: ...  # type: ignore[overload-overlap]

    @overload
    def encode_document(self, texts: Sequence[str], *, inputs: Values = NOTHING) -> list[Floats]: ...

    def encode_document(self, texts: str | Sequence[str], *, inputs: Values = NOTHING) -> Floats | list[Floats]:
        """As `encode_query`, for documents, whose punctuation has no vectors in most models."""
        vectors = self._vectors_of(_as_list(texts), inputs)
        return vectors[0] if isinstance(texts, str) else vectors

    @advise
    def rerank(
        self, query: str, documents: Sequence[str], *, top: int | None = None, inputs: Values = NOTHING
    ) -> list[RankedDocument]:
        """Documents by how well they answer a query, the best first, with the model's scores.

        Args:
            query: a text.
            documents: any number of texts; a single text is one document.
            top: how many to give; None: all.
            inputs: other inputs of the model with a row per document, by name.

        Raises:
            SessionError: the model does not compare texts, or `top` is no number of documents.
        """
        check_top(top)
        scores = self.scores([(query, document) for document in _as_list(documents)], inputs=inputs)
        return [RankedDocument(int(at), float(scores[at])) for at in np.argsort(-scores, kind="stable")[:top]]

    @advise
    def scores(self, texts: Sequence[Text], *, inputs: Values = NOTHING) -> Floats:
        """The scores of pairs of texts, float32 [B], as the model gives them.

        With a vector for every token, the score is the sum over the query's tokens of the largest product with a token
        of the document.

        Raises:
            SessionError: the model does not compare texts.
        """
        if self.info.late is not None:
            return self._max_sims(_as_list(texts), inputs)
        output = self._scores()
        if output is None or not output.shape or output.shape[-1] not in (1, None):
            raise SessionError(f"{self._shown_path}: gives no score of a pair of texts, {self._what_it_gives()}")
        many = _as_list(texts)
        values = self._runs.array(output, self._reader.read_packed(many), inputs)
        return values.reshape(len(many))

    @overload
    def classify(self, texts: Text, *, inputs: Values = NOTHING) -> Classification: ...  # type: ignore[overload-overlap]

    @overload
    def classify(self, texts: Sequence[Text], *, inputs: Values = NOTHING) -> list[Classification]: ...

    def classify(
        self, texts: Text | Sequence[Text], *, inputs: Values = NOTHING
    ) -> Classification | list[Classification]:
        """Labels with scores: a `Classification` for every text or pair of texts; one for a single text.

        Args:
            texts: texts, or pairs of texts as tuples of two; a single tuple is one pair.
            inputs: other inputs of the model with a row per text, by name.

        Raises:
            SessionError: the model is no classifier.
        """
        output = self._scores()
        if output is None:
            raise SessionError(f"{self._shown_path}: gives no scores of labels, {self._what_it_gives()}")
        is_pair = isinstance(texts, tuple) and len(texts) == 2 and all(isinstance(text, str) for text in texts)
        single = isinstance(texts, str) or is_pair
        many: Any = [texts] if single else _as_list(texts)
        values = self._runs.array(output, self._reader.read_packed(many), inputs)
        results: list[Classification] = classify(values, self.info) if many else []
        return results[0] if single else results

    @overload
    def tag(self, texts: str, *, words: bool = False, inputs: Values = NOTHING) -> list[TaggedSpan]: ...  # type: ignore[overload-overlap]

    @overload
    def tag(self, texts: Sequence[str], *, words: bool = False, inputs: Values = NOTHING) -> list[list[TaggedSpan]]: ...

    def tag(
        self, texts: str | Sequence[str], *, words: bool = False, inputs: Values = NOTHING
    ) -> list[TaggedSpan] | list[list[TaggedSpan]]:
        """Labels of words: a list of `TaggedSpan` for every text; one list for a single text.

        Args:
            texts: any number of them.
            words: give every word separately, also those labelled "O"; otherwise words joined by "B-" and "I-" are one
                span, and words labelled "O" are left out.
            inputs: other inputs of the model with a row per text, by name.

        Raises:
            SessionError: the model is no tagger.
        """
        output = self._outputs.get(LOGITS)
        if output is None or not output.has_token_rows:
            raise SessionError(f"{self._shown_path}: gives no labels of words, {self._what_it_gives()}")
        many = _as_list(texts)
        rows = self._runs.rows(output, self._reader.read_packed(many, prompt=""), inputs)
        results = []
        for text, encoding, values in zip(many, self._reader.encodings(many), rows, strict=True):
            spans = words_of(text, encoding, values, self.info.labels)
            results.append(spans if words else join(text, spans))
        return results[0] if isinstance(texts, str) else results

    @overload
    def tokens(self, texts: str, *, inputs: Values = NOTHING) -> TokenRows: ...  # type: ignore[overload-overlap]

    @overload
    def tokens(self, texts: Sequence[str], *, inputs: Values = NOTHING) -> list[TokenRows]: ...

    def tokens(self, texts: str | Sequence[str], *, inputs: Values = NOTHING) -> TokenRows | list[TokenRows]:
        """The tokens of every text as a `TokenRows`, with the model's vector of each if it gives them.

        Args:
            texts: any number of them, without a prompt.
            inputs: other inputs of the model with a row per text, by name.
        """
        if self.info.late is not None:
            raise SessionError(f"{self._shown_path}: reads queries and documents: call encode_query, or {LATE}")
        many = _as_list(texts)
        output = next((item for item in self._outputs.values() if item.has_token_rows), None)
        tokens = self._reader.read_packed(many, prompt="")
        rows = [None] * len(many) if output is None else self._runs.rows(output, tokens, inputs)
        results = [
            TokenRows(tuple(item.tokens), tuple(item.offsets), None if row is None else np.asarray(row, np.float32))
            for item, row in zip(self._reader.encodings(many), rows, strict=True)
        ]
        return results[0] if isinstance(texts, str) else results

    def _vectors_of(self, texts: Sequence[str], inputs: Values) -> list[Floats]:
        """The vectors of every text's tokens that count, in the order of the texts."""
        vectors = dict(self._token_vectors(texts, inputs))
        return [vectors[number] for number in range(len(texts))]

    def _token_vectors(
        self, texts: Sequence[str], inputs: Values, turns: Array | None = None
    ) -> Iterator[tuple[int, Floats]]:
        """Numbers of texts, and the vectors of each one's tokens that count, [tokens, N]; a `Query` is read as one.

        Texts come as they are computed, those with smaller `turns`, int64 [texts], before others.
        """
        late, output = self.info.late, self._outputs.get(contract.OUTPUTS[contract.LATE])
        if late is None or output is None:
            raise SessionError(f"{self._shown_path}: has no vectors of tokens, {self._what_it_gives()}")
        ids, tokens = self._metadata.ids_input().name, self._reader.read_packed(texts, prompt="")
        for numbers, batch, rows in self._runs.parts(output, tokens, inputs, turns):
            are_queries = [isinstance(texts[number], Query) for number in numbers]
            vectors = token_vectors(late, rows, batch.tokens[ids], are_queries)
            for number, text_vectors in zip(numbers, vectors, strict=True):
                self._runs.check_finite([text_vectors])
                yield number, text_vectors

    def _max_sims(self, pairs: Sequence[Text], inputs: Values) -> Floats:
        """The scores of pairs of a query and a document; each query is computed once."""
        split = [(pair[0], pair[1]) for pair in pairs if not isinstance(pair, str) and len(pair) == 2]
        if len(split) < len(pairs):
            raise SessionError("a text by itself, and scores are of pairs; give ('query', 'document')")
        if inputs:
            raise SessionError("scores by vectors of tokens take no other inputs; leave them out")
        pair_scores = PairScores(split)
        for number, vectors in self._token_vectors(pair_scores.texts, NOTHING, pair_scores.turns):
            pair_scores.add(number, vectors)
        return pair_scores.scores

    def _scores(self) -> OutputInfo | None:
        """The output of scores of texts."""
        candidates = (self._outputs.get(name) for name in (SCORES, LOGITS))
        return next((item for item in candidates if item is not None and item.layout == "per_sequence"), None)

    def _what_it_gives(self) -> str:
        """What to call instead, for messages."""
        kind = self.kind
        if kind in _DOES:
            return f"it {_DOES[kind]}: call {kind}"
        return (
            f"only {', '.join(self._outputs)}; build it with pooling (--pooling mean; padfree.Model(..., "
            "pooling='mean') with a folder), or call tokens"
        )


def _as_list(texts: Any) -> list[Any]:
    """Texts or pairs of them; a text by itself as one.

    Raises:
        SessionError: something else, such as the None or NaN of a table's empty cell.
    """
    if isinstance(texts, str):
        return [texts]
    is_table = getattr(texts, "ndim", 1) != 1  # what comes out of those of pandas are the names of columns
    if isinstance(texts, bytes | Mapping) or not isinstance(texts, Iterable) or is_table:
        raise SessionError(
            f"texts are {_value_text(texts)}, allowed: a text or a list of them, such as one column of a table"
        )
    many = list(texts.to_pylist() if hasattr(texts, "to_pylist") else texts)  # pyarrow's columns hold no str
    for at, text in enumerate(many):
        if isinstance(text, tuple | list):
            _check_pair(at, text)
        elif not isinstance(text, str):
            raise SessionError(f"text {at} is {_value_text(text)}, allowed: a str; leave it out, or give ''")
    return many


def _check_pair(at: int, pair: Sequence[Any]) -> None:
    """Raises SessionError for what is no pair of texts; `at` is its number."""
    if len(pair) != 2:
        raise SessionError(
            f"text {at} is {_value_text(pair)} of {len(pair)}, allowed: a str, or a pair of two; pass one list of all "
            "texts"
        )
    others = [text for text in pair if not isinstance(text, str)]
    if others:
        raise SessionError(f"pair {at} holds {_value_text(others[0])}, allowed: two texts; correct it")


def _value_text(value: Any) -> str:
    return f"{' '.join(ascii(value).split())[:40]} ({type(value).__name__})"

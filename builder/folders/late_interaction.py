# SPDX-License-Identifier: Apache-2.0
"""Models with a vector for every token: how the folders of ColBERT and of PyLate say that texts are read.

ColBERT (github.com/stanford-futuredata/ColBERT) writes artifact.metadata, PyLate (github.com/lightonai/pylate) entries
of config_sentence_transformers.json. Both put a marker after a text's first token, fill queries with mask tokens, and
drop the vectors of documents' punctuation.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from padfree.contract.late_interaction import LateInteraction
from padfree.runtime.text import TokenizerFile
from tokenizers import Tokenizer

from ..definitions.graph import Unseen
from ..errors import BuildError
from .config import ModelConfig
from .head import Dense, Head, Normalize
from .objects import Entries
from .weights import read_header, read_tensor

METADATA = "artifact.metadata"
ARCHITECTURE = "HF_ColBERT"
PROJECTION = "linear.weight"
"""The projection among the weights of ColBERT's own folders; it has no bias."""
_MASKS = ("[MASK]", "<mask>")


@dataclass(frozen=True)
class LateSettings:
    """What a folder says, before a tokenizer has made ids of it.

    Attributes:
        file: where it stands.
        query_marker: the token after a query's first one; "" for none.
        document_marker: likewise of a document.
        query_length: most tokens of a query.
        document_length: likewise of a document.
        expands: whether mask tokens fill queries.
        attends: whether other tokens see these.
        skiplist_words: tokens of documents that have no vectors.
        encodes_words: whether such a word stands for the first token that the tokenizer makes of it, as in ColBERT;
            otherwise for the token of this name, as in PyLate.
    """

    file: Path
    query_marker: str
    document_marker: str
    query_length: int
    document_length: int
    expands: bool
    attends: bool
    skiplist_words: tuple[str, ...]
    encodes_words: bool

    @property
    def hides(self) -> bool:
        """Whether queries have tokens that none sees."""
        return self.expands and not self.attends


def late_settings(path: Path, config: ModelConfig, head: Head | None, settings: Entries) -> LateSettings | None:
    """What a folder says of queries and documents; None where its model has no vector for every token.

    Args:
        path: the folder.
        config: its config.json.
        head: what its modules make of the encoder's rows.
        settings: its config_sentence_transformers.json.

    Raises:
        BuildError: an entry is missing, or asks for another kind of score.
    """
    if head is None and any(name.endswith(ARCHITECTURE) for name in config.architectures):
        return _of_colbert(Entries(path / METADATA))
    return _of_pylate(settings) if head is not None and head.of_tokens else None


def _of_colbert(entries: Entries) -> LateSettings:
    query, document = entries.integer("query_maxlen"), entries.integer("doc_maxlen")
    if query is None or document is None:
        raise BuildError(
            f"{entries.file}: is missing, or lacks query_maxlen and doc_maxlen, which say how ColBERT reads texts; "
            "download the whole folder"
        )
    for name, value in (("similarity", "cosine"), ("interaction", "colbert")):
        if entries.text(name) not in (None, value):
            raise entries.wrong(name, value)
    return LateSettings(
        file=entries.file,
        query_marker=entries.text("query_token_id") or "[unused0]",
        document_marker=entries.text("doc_token_id") or "[unused1]",
        query_length=query,
        document_length=document,
        expands=True,
        attends=entries.boolean("attend_to_mask_tokens"),
        skiplist_words=tuple(string.punctuation) if entries.boolean("mask_punctuation", default=True) else (),
        encodes_words=True,
    )


def _of_pylate(entries: Entries) -> LateSettings:
    """PyLate's entries, with its defaults."""
    query, document = (entries.text(name) for name in ("query_prefix", "document_prefix"))
    words = entries.raw.get("skiplist_words")
    expands = entries.boolean("do_query_expansion", default=True)
    if entries.object("prompts").get(entries.text("default_prompt_name") or ""):
        raise entries.wrong("default_prompt_name", "none, as texts get no prompts beside their marker")
    return LateSettings(
        file=entries.file,
        query_marker="[Q] " if query is None else query,
        document_marker="[D] " if document is None else document,
        query_length=entries.integer("query_length") or 32,
        document_length=entries.integer("document_length") or 180,
        expands=expands,
        attends=expands and entries.boolean("attend_to_expansion_tokens"),
        skiplist_words=tuple(string.punctuation) if words is None else entries.texts("skiplist_words"),
        encodes_words=False,
    )


def _check_lengths(settings: LateSettings) -> None:
    least = 4  # what stands around a text, the marker, and a token of its own
    for name, length in (("queries", settings.query_length), ("documents", settings.document_length)):
        if length < least:
            raise BuildError(f"{settings.file}: {name} have {length} tokens at most, allowed: {least} or more")


def projection(weights: Sequence[Path]) -> Head:
    """The head of ColBERT's own folders: every row through a layer among the weights, and divided by its norm.

    Raises:
        BuildError: the weights have none.
    """
    for file in weights:
        if PROJECTION in read_header(file):
            return Head(steps=(Dense(read_tensor(file, PROJECTION), None, "identity"), Normalize()), of_tokens=True)
    raise BuildError(
        f"{weights[0].parent if weights else METADATA}: has no safetensors file with {PROJECTION}, ColBERT's "
        "projection; download model.safetensors of the model"
    )


def resolve(
    settings: LateSettings, tokenizer: TokenizerFile, config: ModelConfig, names: Entries
) -> tuple[LateInteraction, Unseen | None]:
    """The ids for what a folder says, and the tokens that none sees, if queries have such.

    Args:
        settings: what the folder says.
        tokenizer: its tokenizer.
        config: its config.json.
        names: its tokenizer_config.json, which names special tokens.

    Raises:
        BuildError: the tokenizer has no such token, or the model has fewer positions.
    """
    _check_lengths(settings)
    vocabulary, positions = tokenizer.tokenizer(), config.max_positions
    if positions is not None and max(settings.query_length, settings.document_length) > positions:
        raise BuildError(
            f"{settings.file}: texts have up to {max(settings.query_length, settings.document_length)} tokens, the "
            f"model {positions} positions: they belong to different models; download the folder again"
        )
    query, document = (
        _marker(vocabulary, text, settings) for text in (settings.query_marker, settings.document_marker)
    )
    mask = _mask(vocabulary, names, settings) if settings.expands else None
    unseen, expansion = None, mask
    if settings.hides and mask is not None and config.vocab_size is not None:
        unseen, expansion = Unseen(mask, settings.query_length), config.vocab_size
    late = LateInteraction(
        query_length=settings.query_length,
        document_length=settings.document_length,
        query_marker=query,
        document_marker=document,
        expansion=expansion,
        skiplist=_skiplist(vocabulary, names, settings),
    )
    return late, unseen


def _marker(vocabulary: Tokenizer, text: str, settings: LateSettings) -> int | None:
    if not text:
        return None
    token: int | None = vocabulary.token_to_id(text)
    if token is None:
        raise BuildError(
            f"{settings.file}: names the marker {text!a}, which the tokenizer has no token for, so that its row would "
            "be a random one; save the model by the library that trained it, and give that folder"
        )
    return token


def _mask(vocabulary: Tokenizer, names: Entries, settings: LateSettings) -> int:
    candidates = (_name(names, "mask_token"), *_MASKS)
    ids = [vocabulary.token_to_id(name) for name in candidates if name]
    token = next((item for item in ids if item is not None), None)
    if token is None:
        raise BuildError(
            f"{settings.file}: queries are filled with mask tokens, and the tokenizer has none; set "
            "do_query_expansion to false if the model was trained without them"
        )
    return int(token)


def _skiplist(vocabulary: Tokenizer, names: Entries, settings: LateSettings) -> tuple[int, ...]:
    """The ids of words without vectors. PyLate takes the unknown token for words that the tokenizer does not have."""
    if settings.encodes_words:
        firsts = [vocabulary.encode(word, add_special_tokens=False).ids[:1] for word in settings.skiplist_words]
        return tuple(sorted({token for first in firsts for token in first}))
    unknown = vocabulary.token_to_id(_name(names, "unk_token") or "")
    tokens = [vocabulary.token_to_id(word) for word in settings.skiplist_words]
    ids = {unknown if token is None else token for token in tokens}
    return tuple(sorted(token for token in ids if token is not None))


def _name(names: Entries, key: str) -> str:
    """A special token's name, which may be an object."""
    value = names.raw.get(key)
    name = value.get("content") if isinstance(value, dict) else value
    return name if isinstance(name, str) else ""

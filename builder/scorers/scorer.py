# SPDX-License-Identifier: Apache-2.0
"""Makes a reranker of a model that generates text: two rows of its last layer, and a template for pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from padfree.contract.templates import Template
from padfree.runtime.text import read_tokenizer_file
from tokenizers import Tokenizer

from ..definitions.tensors import Tensors
from ..errors import BuildError
from ..folders.config import ModelConfig
from ..folders.head import Dense, Head, HeadOptions
from ..folders.objects import Entries
from ..tokenization import as_build_errors
from .chat_template import chat_template, parse_template_option, special_tokens
from .known_scorers import KNOWN_SCORERS, KnownScorer, known_scorer

_PLAIN = ("gemma", "gemma3_text", "llama", "mistral", "qwen2", "qwen3")
"""Architectures whose scores of words are dot products of the last hidden state and rows of lm_head, and no more."""
_OWN, _TIED = "lm_head.weight", ("model.embed_tokens.weight", "embed_tokens.weight")
_LIKE = "rerankers that answer, such as Qwen3-Reranker, with --scores yes,no"


@dataclass(frozen=True)
class Scorer:
    """A reranker.

    Attributes:
        answers: ids of the token whose score counts, and of the one that it is compared with, if there is one.
        answer_names: both as texts, for messages.
        template: the text around pairs.
        activation: applied to the difference of both.
        notes: what to tell the user.
    """

    answers: tuple[int, ...]
    answer_names: tuple[str, ...]
    template: Template
    activation: str
    notes: tuple[str, ...] = ()

    def head(self, weights: Sequence[Path], config: ModelConfig) -> Head:
        """What follows the encoder: the last token, and the difference of two rows of lm_head."""
        rows = _rows(weights, config, self.answers)
        difference = rows[:1] if len(rows) == 1 else rows[:1] - rows[1:]
        return Head(("lasttoken",), (Dense(difference, None, "identity"),), scores=self.activation)


def scorer_of(
    path: Path,
    encoder: Path,
    config: ModelConfig,
    options: HeadOptions,
    *,
    answers: tuple[int, ...],
    activation: str,
    prompt: str,
) -> Scorer | None:
    """The reranker that a folder's model is, or that the options make it; None: it is none.

    Args:
        path: the model's folder.
        encoder: where config.json and the tokenizer lie.
        config: what config.json says; its model generates text.
        options: --scores and --template.
        answers: ids that the folder itself names.
        activation: the one that the folder itself names; "": a sigmoid for differences, nothing for single scores.
        prompt: the folder's default prompt.

    Raises:
        BuildError: no such token, no template, or one without a place for a text; or a model whose last layer is not
            known.
    """
    known_scorer_entry = KNOWN_SCORERS.get(options.template) or known_scorer(path, Entries(config.file).raw)
    names = options.scores or (known_scorer_entry.scores if known_scorer_entry is not None and not answers else ())
    if not names and not answers:
        return None
    if config.model_type not in _PLAIN:
        raise BuildError(
            f"{path}: how a {config.model_type} makes scores of words is not known to padfree, only that of "
            f"{', '.join(_PLAIN)}; take a reranker of one of these, or one with a head for sequence classification"
        )
    tokenizer = _tokenizer(path, encoder, config)
    origin = f"--scores {','.join(names)}" if options.scores else f"{path}: answers with {' and '.join(names)}"
    ids = tuple(_id_of(name, tokenizer, origin) for name in names) or answers
    if len(set(ids)) < len(ids):
        raise BuildError(f"--scores {','.join(names)}: both are the token {ids[0]}; name two tokens")
    size = config.vocab_size or 0
    if max(ids) >= size:
        raise BuildError(
            f"{path}: an answer's token is {max(ids)}, and the model has {size}; download the folder again"
        )
    answer_names = names or tuple(str(tokenizer.id_to_token(item)) for item in ids)
    template, notes = _template(path, encoder, tokenizer, options, known_scorer_entry, prompt)
    against = f" against {answer_names[1]!a}" if len(answer_names) > 1 else ""
    notes = (f"is a reranker: the last token's score of {answer_names[0]!a}{against}", *notes)
    return Scorer(ids, answer_names, template, activation or ("sigmoid" if len(ids) > 1 else "identity"), notes)


def _template(
    path: Path,
    encoder: Path,
    tokenizer: Tokenizer,
    options: HeadOptions,
    known_scorer_entry: KnownScorer | None,
    prompt: str,
) -> tuple[Template, tuple[str, ...]]:
    """The text around pairs, and notes about it."""
    if options.template and options.template not in KNOWN_SCORERS:
        return parse_template_option(options.template, encoder, tokenizer), ()
    own = chat_template(encoder)
    if known_scorer_entry is not None and (options.template or own is None or not known_scorer_entry.own_first):
        return known_scorer_entry.template_of(special_tokens(encoder)), (
            f"its template is that of {known_scorer_entry.name}'s card",
        )
    if own is None:
        raise BuildError(
            f"{path}: has no chat template, which would say what stands around query and document; pass --template "
            "with a text that has {query} and {document}"
        )
    advice = "" if own.names_both else ", which is told to judge as Qwen3-Reranker is (--template for other words)"
    return own.template(prompt), (f"its template is the folder's own chat template{advice}",)


def template_for_pairs(path: Path, encoder: Path, config: ModelConfig, options: HeadOptions) -> Template | None:
    """What --template says for a model with a head for pairs; None: it is not asked for."""
    if not options.template:
        return None
    known_scorer_entry = KNOWN_SCORERS.get(options.template)
    if known_scorer_entry is not None:
        return known_scorer_entry.template_of(special_tokens(encoder))
    return parse_template_option(options.template, encoder, _tokenizer(path, encoder, config))


def check_options(path: Path, options: HeadOptions, *, generates: bool, takes_pairs: bool) -> None:
    """Refuses options of rerankers for other models.

    Raises:
        BuildError: naming the option.
    """
    if options.pooling and (options.scores or options.template):
        option = "--scores" if options.scores else "--template"
        raise BuildError(
            f"{path}: --pooling {','.join(options.pooling)} with {option}: the first asks for the encoder's numbers, "
            "the second for scores of pairs; leave one of them out"
        )
    if options.scores and not generates:
        raise BuildError(
            f"{path}: --scores is for models that generate text (ForCausalLM), and this one has a head of its own; "
            "leave --scores out"
        )
    if options.template and not generates and not takes_pairs:
        raise BuildError(f"{path}: --template is for models that compare two texts; leave it out")


def advice() -> str:
    """What to do with a model that generates text."""
    return f"and {_LIKE}"


def _tokenizer(path: Path, encoder: Path, config: ModelConfig) -> Tokenizer:
    files = (folder / "tokenizer.json" for folder in (path, encoder))
    file = next((item for item in files if item.is_file()), None)
    if file is None:
        raise BuildError(
            f"{path}: has no tokenizer.json, which tells the answers' tokens; load it with transformers' AutoTokenizer "
            "and write it there with save_pretrained"
        )
    with as_build_errors():
        return read_tokenizer_file(file, encoder, config.vocab_size).tokenizer()


def _id_of(name: str, tokenizer: Tokenizer, origin: str) -> int:
    """The token of an answer, as it stands in a text by itself, or in the vocabulary; `origin` begins the message."""
    try:
        encoding = tokenizer.encode(name, add_special_tokens=False)
    except Exception:  # the library raises plain Exception; of tokenizers without a token for unknown words
        encoding = None
    token_id: int | None = tokenizer.token_to_id(name)
    if encoding is not None and len(encoding.ids) == 1 and _is_known(encoding.ids[0], tokenizer, name):
        return int(encoding.ids[0])
    if token_id is not None:
        return int(token_id)
    parts = [] if encoding is None else encoding.tokens
    splits = f"splits it into {', '.join(map(ascii, parts[:6]))}" if len(parts) > 1 else "does not have it"
    raise BuildError(
        f"{origin}: {name!a} is no token, the tokenizer {splits}; name tokens of its vocabulary, as the model's card "
        "does (--scores), or download the tokenizer again"
    )


def _is_known(item: int, tokenizer: Tokenizer, name: str) -> bool:
    """Whether a token means this text, and not all unknown words."""
    return bool(tokenizer.decode([item], skip_special_tokens=False).strip() == name.strip())


def _rows(weights: Sequence[Path], config: ModelConfig, ids: Sequence[int]) -> np.ndarray:
    """Rows of lm_head, or of the embeddings where these are the same, float32 [N, E]; nothing else is read."""
    tensors = Tensors(weights)
    tied = Entries(config.file).raw.get("tie_word_embeddings")
    name = _OWN if _OWN in tensors or tied is False else next((item for item in _TIED if item in tensors), _OWN)
    size, width = config.vocab_size or 0, config.hidden_size or 0
    table = tensors.take(name, size, width)
    nothing: Mapping[Path, None] = {table.file: None}
    return np.concatenate([table.rows(item, item + 1).read(nothing) for item in ids])

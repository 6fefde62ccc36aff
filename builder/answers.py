# SPDX-License-Identifier: Apache-2.0
"""A model's answers to texts, one line of JSON each: vectors, scores, labels, or words with labels."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from padfree.contract.late_interaction import QUERY, ROLES
from padfree.contract.texts import SEVERAL_LABELS
from padfree.runtime.answers import CLASSIFY, ENCODE, LATE, SCORE, TAG, TextModel
from padfree.runtime.text import Text, prompt_advice

from .errors import BuildError
from .files import write_with

Answer = dict[str, Any]


def answers_of(
    model: TextModel, texts: Sequence[Text], inputs: Mapping[str, Any], prompt_name: str | None
) -> list[Answer]:
    """The model's answer to every text or pair, as JSON objects.

    Args:
        model: the opened model.
        texts: texts, or pairs.
        inputs: other inputs of the model with a row per text, by name.
        prompt_name: for models of vectors: the prompt to prepend; where tokens have vectors, what texts are: "query" or
            "document".

    Raises:
        SessionError: a text that the model does not take; BuildError: a pair for a model that reads texts alone.
    """
    kind, is_multiple = model.kind, model.info.problem == SEVERAL_LABELS
    if kind == LATE:
        return _late_answers(model, texts, inputs, prompt_name)
    if prompt_name is not None and kind != ENCODE:
        raise BuildError(f"--prompt {prompt_name}: is for models of vectors, and this one makes none; leave it out")
    if kind == SCORE:
        return [{"score": score} for score in model.scores(texts, inputs=inputs).tolist()]
    if kind == CLASSIFY:
        return [
            {
                "label": one.label,
                "score": one.score,
                **({"labels": one.labels} if is_multiple else {}),
                "scores": one.scores,
            }
            for one in model.classify(texts, inputs=inputs)
        ]
    single = [text for text in texts if isinstance(text, str)]
    if len(single) < len(texts):
        raise BuildError("the model reads texts by themselves, and a pair was given; leave the second text out")
    if kind == TAG:
        return [{"words": [asdict(word) for word in words]} for words in model.tag(single, inputs=inputs)]
    if kind == ENCODE:
        vectors = model.encode(single, prompt_name=prompt_name, inputs=inputs)
        return [{"embedding": vector} for vector in vectors.tolist()]
    return [
        {"tokens": one.tokens, "embeddings": None if one.vectors is None else one.vectors.tolist()}
        for one in model.tokens(single, inputs=inputs)
    ]


def method_of(model: TextModel, prompt_name: str | None, *, pairs: bool) -> str:
    """The method of padfree.Model that gives such answers; arguments as of `answers_of`."""
    if model.kind != LATE:
        return model.kind
    return "scores" if pairs else "encode_query" if prompt_name == QUERY else LATE


def _late_answers(
    model: TextModel, texts: Sequence[Text], inputs: Mapping[str, Any], prompt_name: str | None
) -> list[Answer]:
    """A score of every pair, or the vectors of every text's tokens."""
    if prompt_name not in (None, *ROLES):
        raise BuildError(f"--prompt {prompt_name}: {prompt_advice(ROLES)}")
    singles = [text for text in texts if isinstance(text, str)]
    if not singles and texts:
        return [{"score": score} for score in model.scores(texts, inputs=inputs).tolist()]
    if len(singles) < len(texts):
        raise BuildError("some texts are pairs, which get scores, and some are not; give them in two files")
    encode = model.encode_query if prompt_name == QUERY else model.encode_document
    return [{"embeddings": vectors.tolist()} for vectors in encode(singles, inputs=inputs)]


def write_answers(path: Path, texts: Sequence[Text], answers: Sequence[Answer]) -> None:
    """Writes every text with its answer, one per line.

    Raises:
        BuildError: the disk is full or the folder cannot be written; no file is left behind.
    """

    def save(file: IO[bytes]) -> None:
        for text, answer in zip(texts, answers, strict=True):
            entry = {"text": text} if isinstance(text, str) else dict(zip(("text", "text_pair"), text, strict=True))
            file.write(json.dumps({**entry, **answer}, ensure_ascii=False).encode() + b"\n")

    write_with(path, save)

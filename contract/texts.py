# SPDX-License-Identifier: Apache-2.0
"""How texts become tokens for a model, and what its results mean: as its folder says, kept in the metadata."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .fields import MOST_INT64, Fields
from .late_interaction import LateInteraction, parse_late_interaction
from .templates import Template, parse_template

FEATURES = "feature-extraction"
SENTENCES = "sentence-embedding"
SPARSE = "sparse-embedding"
PAIRS = "cross-encoder"
CLASSES = "text-classification"
TOKENS = "token-classification"
ANSWERS = "question-answering"
MASKED = "fill-mask"
LATE = "late-interaction"
TASKS = (FEATURES, SENTENCES, SPARSE, PAIRS, CLASSES, TOKENS, ANSWERS, MASKED, LATE)
"""What a model is for; the names are those of Hugging Face's pipelines where these have one."""
OUTPUTS: Mapping[str, str] = {
    SENTENCES: "sentence_embedding",
    SPARSE: "sentence_embedding",
    PAIRS: "scores",
    LATE: "token_embeddings",
}
"""The output that answers a task, where padfree names it."""
ONE_LABEL, SEVERAL_LABELS, REGRESSION = "single_label_classification", "multi_label_classification", "regression"
PROBLEMS = ("", ONE_LABEL, SEVERAL_LABELS, REGRESSION)
"""What a classifier's classes are, as config.json calls it; "": it does not say."""
IDENTITY = "identity"
"""The activation of cross-encoders whose scores are their logits."""
RIGHT, LEFT = "right", "left"
SIDES = (RIGHT, LEFT)
"""The ends of a text that may be cut off."""
DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class TextInfo:
    """What a model's folder says about texts.

    Attributes:
        task: one of TASKS.
        tokenizer_sha256: digest of the tokenizer.json that lies beside the model; None: there is none.
        max_length: most tokens of a text, special tokens included; longer ones are cut. None: the model's positions.
        prompts: texts that are prepended to a text, by name.
        default_prompt: the name of the prompt that is used where none is asked for; None: no prompt.
        pooling: how rows of tokens became one vector: modes of sentence-transformers, or "splade".
        normalize: whether vectors have length 1.
        similarity: "cosine", "dot", "euclidean" or "manhattan"; None: the folder does not say.
        labels: names of classes, in the order of the scores.
        problem: one of PROBLEMS: whether a text has one label, or several, or a number.
        activation: turns a cross-encoder's logits into its scores; "" for other models.
        truncation_side: the end that longer texts lose: "right" or "left".
        token_types: whether texts have token types; where they have none, models that read types get zeros.
        pools_prompt: whether the tokens of prompts are pooled; False: all others are.
        template: the text around pairs of texts; None: what the tokenizer adds.
        late: how queries and documents are read, if the model has a vector for every token; None: all alike.
    """

    task: str
    tokenizer_sha256: str | None = None
    max_length: int | None = None
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    pooling: tuple[str, ...] = ()
    normalize: bool = False
    similarity: str | None = None
    labels: tuple[str, ...] = ()
    activation: str = ""
    truncation_side: str = RIGHT
    token_types: bool = True
    pools_prompt: bool = True
    problem: str = ""
    template: Template | None = None
    late: LateInteraction | None = None

    @property
    def takes_pairs(self) -> bool:
        """Whether the model compares two texts."""
        return self.task == PAIRS

    @property
    def is_activated(self) -> bool:
        """Whether scores have gone through an activation; otherwise they are logits."""
        return self.activation not in ("", IDENTITY)

    @property
    def refuses_single_texts(self) -> bool:
        """Whether the model cannot use texts by themselves; a model that rates something may rate a text."""
        return self.takes_pairs and self.problem != REGRESSION

    @property
    def may_take_pairs(self) -> bool:
        """Whether two texts may come as a pair; for vectors and for labels of tokens, a text comes alone."""
        return self.task not in (SENTENCES, SPARSE, TOKENS, MASKED, LATE)

    def to_dict(self) -> dict[str, Any]:
        """The object that `parse_text` reads."""
        return {
            "task": self.task,
            "tokenizer_sha256": self.tokenizer_sha256,
            "max_length": self.max_length,
            "prompts": dict(self.prompts),
            "default_prompt": self.default_prompt,
            "pooling": list(self.pooling),
            "normalize": self.normalize,
            "similarity": self.similarity,
            "labels": list(self.labels),
            "activation": self.activation,
            "truncation_side": self.truncation_side,
            "token_types": self.token_types,
            "pools_prompt": self.pools_prompt,
            **({"problem": self.problem} if self.problem else {}),
            **({"template": self.template.to_dict()} if self.template is not None else {}),
            **({"late_interaction": self.late.to_dict()} if self.late is not None else {}),
        }


def parse_text(fields: Fields) -> TextInfo:
    """Checks and types the entry `text` of the metadata. Raises what `fields` raises."""
    prompts = fields.object("prompts")
    default = fields.optional_string("default_prompt")
    if default is not None and default not in prompts:
        raise fields.fail("default_prompt", f"one of {', '.join(prompts.names()) or 'no prompts'}")
    # Files that older versions wrote lack truncation_side, and what follows it.
    side = fields.text("truncation_side", SIDES) if "truncation_side" in fields else RIGHT
    digest = None if fields.optional_string("tokenizer_sha256") is None else fields.text("tokenizer_sha256", DIGEST)
    return TextInfo(
        task=fields.text("task", TASKS),
        tokenizer_sha256=digest,
        max_length=fields.optional_integer("max_length", least=1, most=MOST_INT64),
        prompts={name: prompts.string(name) for name in prompts.names()},
        default_prompt=default,
        pooling=fields.strings("pooling"),
        normalize=fields.boolean("normalize"),
        similarity=fields.optional_string("similarity"),
        labels=fields.strings("labels"),
        activation=fields.optional_string("activation") or "",
        truncation_side=side,
        token_types="token_types" not in fields or fields.boolean("token_types"),
        pools_prompt="pools_prompt" not in fields or fields.boolean("pools_prompt"),
        problem=fields.text("problem", PROBLEMS) if "problem" in fields else "",
        template=parse_template(fields.object("template")) if "template" in fields else None,
        late=parse_late_interaction(fields.object("late_interaction")) if "late_interaction" in fields else None,
    )

# SPDX-License-Identifier: Apache-2.0
"""What follows an encoder: pooling, and what is computed of the pooled vectors or of the scores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from padfree.onnx_tools.files import Floats

from ..errors import BuildError

POOLINGS = ("cls", "lasttoken", "mean", "max", "weightedmean", "mean_sqrt_len_tokens")
"""By sentence-transformers' names."""
NO_POOLING = "none"
ACTIVATIONS: Mapping[str, str] = {
    "Identity": "identity",
    "Tanh": "tanh",
    "ReLU": "relu",
    "GELU": "gelu",
    "Sigmoid": "sigmoid",
    "SiLU": "silu",
    "Softmax": "softmax",
}
"""Class of torch.nn -> what it computes, with its defaults."""


@dataclass(frozen=True, eq=False)
class Dense:
    """activation(x @ weight^T + bias), and x, or x @ residual^T, added where `adds`; weight is [out, in]."""

    weight: Floats
    bias: Floats | None
    activation: str
    adds: bool = False
    residual: Floats | None = None


@dataclass(frozen=True, eq=False)
class VectorNorm:
    """A layer norm over the vector."""

    weight: Floats
    bias: Floats
    epsilon: float


@dataclass(frozen=True)
class Normalize:
    """The vector divided by its L2 norm."""


@dataclass(frozen=True)
class Splade:
    """log(1 + relu(logits)) of every token, `twice` log(1 + ...) of that, and their maximum or sum over the tokens."""

    strategy: str
    twice: bool


@dataclass(frozen=True)
class Truncate:
    """The first `size` numbers of the vector, or all of a shorter one; what is left keeps its length."""

    size: int


Step = Dense | VectorNorm | Normalize | Truncate


@dataclass(frozen=True)
class Head:
    """Makes one row per sequence; without pooling the rows of tokens stay, and steps are empty unless they are theirs.

    Attributes:
        pooling: modes out of POOLINGS, whose results lie one after the other.
        steps: what happens to the vector.
        splade: instead of pooling, for sparse encoders.
        scores: the activation of a cross-encoder's logits; "" for other models. With pooling, the steps make the
            logits from the pooled vector.
        pools_prompt: whether the tokens of prompts are pooled; otherwise the graph gets an input for their number.
        of_tokens: whether every token has a vector, which the steps make of its row; nothing is pooled.
    """

    pooling: tuple[str, ...] = ()
    steps: tuple[Step, ...] = ()
    splade: Splade | None = None
    scores: str = ""
    pools_prompt: bool = True
    of_tokens: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether the encoder's outputs stay as they are."""
        return not self.pooling and self.splade is None and not self.scores and not self.of_tokens

    @property
    def normalizes(self) -> bool:
        """Whether vectors have length 1."""
        return bool(self.steps) and isinstance(self.steps[-1], Normalize)


@dataclass(frozen=True)
class HeadOptions:
    """What the user asked for; None and empty: as the folder says.

    Attributes:
        pooling: modes out of POOLINGS, or NO_POOLING.
        normalize: whether vectors are divided by their norm.
        outputs: names of the outputs that are kept.
        adapter: which adapter's weights are added, of a model that has several; "" for none.
        scores: of a model that generates text, the token whose score is the answer, and the one that it is compared
            with.
        template: the text around pairs of texts, with {query} and {document}, a template in Jinja, or the name of one
            that padfree knows; "": the folder's.

    Raises:
        BuildError: an unknown way of pooling.
    """

    pooling: tuple[str, ...] = ()
    normalize: bool | None = None
    outputs: tuple[str, ...] = ()
    adapter: str = ""
    scores: tuple[str, ...] = ()
    template: str = ""

    def __post_init__(self) -> None:
        for mode in self.pooling:
            if mode not in POOLINGS and self.pooling != (NO_POOLING,):
                modes_text = ",".join(map(str, self.pooling))
                poolings = f"{', '.join(POOLINGS)}, or {NO_POOLING} alone"
                raise BuildError(f"--pooling {modes_text}: {mode!r} is unknown, allowed: {poolings}; correct it")

    @property
    def is_empty(self) -> bool:
        """Whether nothing was asked for."""
        return self == HeadOptions()

    def apply(self, head: Head) -> Head:
        """A head with what was asked for instead of what the folder says."""
        if self.pooling == (NO_POOLING,):
            return Head()
        if self.pooling:
            steps = () if head.of_tokens else head.steps
            head = replace(head, pooling=self.pooling, steps=steps, splade=None, scores="", of_tokens=False)
        if self.normalize is False:
            head = replace(head, steps=_drop_normalization(head.steps))
        elif self.normalize and not head.normalizes:
            head = replace(head, steps=(*head.steps, Normalize()))
        return head


def _drop_normalization(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """The steps without the last division by the norm, which a truncation may follow."""
    last = next((step for step in reversed(steps) if not isinstance(step, Truncate)), None)
    if not isinstance(last, Normalize):
        return steps
    index = max(number for number, step in enumerate(steps) if isinstance(step, Normalize))
    return (*steps[:index], *steps[index + 1 :])


AS_THE_FOLDER_SAYS = HeadOptions()


@dataclass(frozen=True)
class Chain:
    """The modules of a folder as sentence-transformers lists them.

    Attributes:
        encoder: the folder of the encoder: the model's own, or one in it that older releases made (0_Transformer).
        head: what they make of the encoder's rows; None: what an encoder alone would have.
        max_length: most tokens of a text; None where nothing says.
        lower_case: whether texts are lower-cased before they are tokenised.
        notes: surprises in the folder, for the user.
        answers: ids of the token whose score is a pair's, and of the one that it is compared with.
    """

    encoder: Path
    head: Head | None = None
    max_length: int | None = None
    lower_case: bool = False
    notes: tuple[str, ...] = field(default=())
    answers: tuple[int, ...] = ()

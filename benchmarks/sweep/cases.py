# SPDX-License-Identifier: Apache-2.0
"""The cases of the sweep on one GPU, by set: which model, which batch, which peers.

In every set the points that matter most to a curve come first, so that a sweep that is cut short can be drawn.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from padfree.builder.engine.lowering.task_lists import SHORT_LENGTH
from padfree.builder.engine.profile import ProfileOptions

FILL = 0.6  # mean length over S: that of lengths uniform in [0.2 S, S]
LONGEST = 1024
LENGTHS = (*range(128, LONGEST + 1, 128), *range(64, LONGEST, 128))
WITH_PYTORCH = (128, 256, 512, 1024)
FILLS = (1.0, 0.1, 0.5, 0.2, 0.8, 0.3, 0.4, 0.6, 0.7, 0.9)
TOKENS = (1024, 16384, 128, 65536, 4096, 256, 512, 2048, 8192, 32768)
WITH_VARLEN = TOKENS[:5]
MANY_TOKENS = ProfileOptions(max_batch=216, max_seq_len=512, max_tokens=66048)
"""Fits every batch of TOKENS, even if the drawn lengths add up to a few more."""
OTHER_MODELS = ("bert-large", "distilbert", "albert", "minilm")
TARGETS = {(16, 512): 1.8, (16, 128): 1.25, (1, 128): None}
"""Batch and S -> how many times as fast as padded TensorRT the engine has to be."""

TENSORRT = ("tensorrt", "limit")
VARLEN = "torch-varlen"
PYTORCH = ("torch-eager", "torch-compile", VARLEN)
FLEX, COMPILED = "torch-flex", "torch-compile"
VARLEN_OF_ANY = "transformers-varlen"
DEBERTA = ("flashdeberta", "disentangled-flash")
OF_BERT = ("tensorrt", "padded-interface", "varseqlen", *PYTORCH, "limit")
OF_FP8 = ("tensorrt-fp8", "tensorrt-fp8-attention", "packed-tensorrt-fp8", "limit")
EVERYTHING = (*OF_BERT, VARLEN_OF_ANY, FLEX, *DEBERTA, *OF_FP8[:-1])
"""All peers but `tensorrt-strong`, which took within 0.5 % of `tensorrt`'s time wherever both were measured."""


@dataclass(frozen=True)
class SweepCase:
    """One case of the sweep.

    set: the part of a picture that it belongs to.
    required: the speed-up over padded TensorRT that is required.
    engine: the profile of padfree's engine if cases share one; None tunes an engine for this case.
    precision: that of our engine; in fp8, peers other than OF_FP8 compute in fp16.
    """

    set: str
    model: str
    batch: int
    seq_len: int
    mean: float
    peers: tuple[str, ...]
    required: float | None = None
    engine: ProfileOptions | None = None
    precision: str = "fp16"

    @property
    def name(self) -> str:
        """The case's name in the records."""
        precision = "" if self.precision == "fp16" else f", {self.precision}"
        return f"{self.set}: {self.model}, {self.batch} x {self.seq_len}, mean {self.mean:.4g}{precision}"


def shared_engine(batch: int, seq_len: int) -> ProfileOptions | None:
    """One engine for all batches of a sweep; short sequences have their own attention kernel, and thus engines."""
    return ProfileOptions(batch, LONGEST, batch * LONGEST) if seq_len > SHORT_LENGTH else None


def targets() -> Iterator[SweepCase]:
    """The batches that padfree's targets name, with every peer; a batch of one sequence has no padding."""
    for (batch, seq_len), required in TARGETS.items():
        mean = seq_len if batch == 1 else FILL * seq_len
        yield SweepCase("targets", "bert-base", batch, seq_len, mean, OF_BERT, required)
    yield SweepCase("targets", "bert-large", 32, 384, FILL * 384, OF_BERT)


def by_length() -> Iterator[SweepCase]:
    """BERT-base over S, as in ByteTransformer's table; PyTorch at four lengths."""
    for batch in (16, 1):
        for seq_len in LENGTHS:
            peers = (*TENSORRT, *PYTORCH) if batch == 16 and seq_len in WITH_PYTORCH else TENSORRT
            engine = shared_engine(batch, seq_len)
            yield SweepCase("length", "bert-base", batch, seq_len, FILL * seq_len, peers, engine=engine)


def by_fill() -> Iterator[SweepCase]:
    """Where padding-free stops paying off: the mean length from 0.1 to all of S."""
    for fill in FILLS:
        yield SweepCase("fill", "bert-base", 16, 512, fill * 512, TENSORRT, engine=shared_engine(16, 512))


def by_tokens() -> Iterator[SweepCase]:
    """From a few tokens to as many as one run takes, compared with a peer that packs too: padding does not matter.

    S is 512; if there are few tokens, they are one sequence.
    """
    for tokens in TOKENS:
        batch = max(1, round(tokens / (FILL * 512)))
        engine = MANY_TOKENS if batch > 1 else None
        seq_len = 512 if batch > 1 else tokens
        peers = (VARLEN, "limit") if tokens in WITH_VARLEN else ("limit",)
        yield SweepCase("tokens", "bert-base", batch, seq_len, tokens / batch, peers, engine=engine)


def by_model() -> Iterator[SweepCase]:
    """Other encoders at B 16, S 512."""
    for model in OTHER_MODELS:
        yield SweepCase("model", model, 16, 512, FILL * 512, (*TENSORRT, "torch-compile"))


WITH_POSITIONS = (
    ("modernbert", 16, 512, (COMPILED, VARLEN, FLEX)),
    ("deberta", 16, 512, (COMPILED, *DEBERTA)),
    ("bert-base", 16, 512, ()),
    ("mpnet", 16, 512, (COMPILED,)),
    ("t5", 16, 512, (COMPILED,)),
    ("nomic", 16, 512, (VARLEN,)),
    ("modernbert", 1, 8192, (COMPILED, VARLEN, FLEX)),
    ("deberta", 16, 128, (COMPILED, *DEBERTA)),
    ("deberta", 1, 128, (COMPILED, *DEBERTA)),
)
"""Encoders whose attention has positions, with B, S and peers; and BERT-base, with which two of them are compared."""


def with_positions() -> Iterator[SweepCase]:
    """Encoders with windows, rotary embeddings and biases; a batch of one sequence has no padding."""
    for model, batch, seq_len, peers in WITH_POSITIONS:
        mean = seq_len if batch == 1 else FILL * seq_len
        yield SweepCase("positions", model, batch, seq_len, mean, (*peers, "limit"))


SMALL = (("minilm", 16, 512, FILL * 512), ("minilm", 1, 32, 32), ("minilm", 1, 128, 128), ("minilm", 100, 300, 165))
"""Model, B, S and mean length; the last is a cross-encoder's: a query with 100 texts, pairs of 30 to 300 tokens."""


def small() -> Iterator[SweepCase]:
    """The most used encoders: E 384, heads of 32."""
    for model, batch, seq_len, mean in (*SMALL, ("bge-small", 32, 384, FILL * 384)):
        yield SweepCase("small", model, batch, seq_len, mean, (*TENSORRT, COMPILED, VARLEN))


FP8 = (
    ("bert-base", 16, 512),
    ("bert-base", 16, 128),
    ("bert-large", 32, 384),
    ("modernbert", 16, 512),
    ("bert-base", 1, 128),
)


def fp8() -> Iterator[SweepCase]:
    """Products in e4m3 compared with fp16, each with its own limit, and with TensorRT's own in e4m3."""
    for model, batch, seq_len in FP8:
        for precision, peers in (("fp8", OF_FP8), ("fp16", ("limit",))):
            mean = seq_len if batch == 1 else FILL * seq_len
            yield SweepCase("fp8", model, batch, seq_len, mean, peers, precision=precision)


DEFINED = ("nomic-v1.5", "gte-base", "jina-v3")
"""Encoders of benchmarks.definitions whose folders refer to code of their own; transformers has its own since 5."""


def by_definition() -> Iterator[SweepCase]:
    """Folders that refer to their own code: a full batch, and one short text."""
    for model in DEFINED:
        for batch, seq_len in ((16, 512), (1, 32)):
            mean = seq_len if batch == 1 else FILL * seq_len
            yield SweepCase("folders", model, batch, seq_len, mean, ("tensorrt", VARLEN_OF_ANY, "limit"))


def decoders() -> Iterator[SweepCase]:
    """Embedding models made of decoders, with rows of all tokens: a full batch, and one short text."""
    for model in ("qwen3-0.6b", "embedding-gemma"):
        for batch, seq_len in ((16, 512), (1, 32)):
            mean = seq_len if batch == 1 else FILL * seq_len
            yield SweepCase("decoders", model, batch, seq_len, mean, (VARLEN_OF_ANY, "limit"), precision="bf16")


def large() -> Iterator[SweepCase]:
    """Layers as wide as those of a model with 4 billion weights, in bf16 and in fp8, each with its own limit."""
    for precision in ("bf16", "fp8"):
        yield SweepCase("large", "qwen3-4b", 16, 512, FILL * 512, ("limit",), precision=precision)


def precisions() -> Iterator[SweepCase]:
    """One batch in every precision, without peers."""
    for precision in ("fp32", "fp16", "bf16", "fp8"):
        yield SweepCase("precisions", "bert-base", 16, 512, FILL * 512, (), precision=precision)


SETS: Mapping[str, tuple[SweepCase, ...]] = {
    "targets": tuple(targets()),
    "length": tuple(by_length()),
    "fill": tuple(by_fill()),
    "tokens": tuple(by_tokens()),
    "model": tuple(by_model()),
    "positions": tuple(with_positions()),
    "small": tuple(small()),
    "fp8": tuple(fp8()),
    "folders": tuple(by_definition()),
    "decoders": tuple(decoders()),
    "large": tuple(large()),
    "precisions": tuple(precisions()),
}

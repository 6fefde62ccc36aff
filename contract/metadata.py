# SPDX-License-Identifier: Apache-2.0
"""The description that travels with a rewritten model (ONNX metadata) and with a plan (a JSON file beside it)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from .errors import ContractError
from .fields import MOST_INT64, Fields
from .names import FORMAT, HELD_ROLES, INPUT_ROLES, INTERFACES, OUTPUT_LAYOUTS, PER_SEQUENCE, PRECISIONS
from .quantization import QuantizationInfo, parse_quantization
from .text_inputs import ids_among, positions_among, types_among
from .texts import DIGEST, TextInfo, parse_text

TYPE_NAMES = re.compile(r"[a-z][a-z0-9_]{0,31}")
VERSION = re.compile(r"\d{1,9}(\.\d{1,9}){1,3}")
CAPABILITY = re.compile(r"\d{1,9}\.\d{1,9}")
MOST_WIDTH = 1 << 16
"""The most numbers that one input may have per token."""
_LEADING_SIZES = {"packed": ("T",), "per_sequence": ("B",), "padded": ("B", "S"), "constant": ()}


@dataclass(frozen=True)
class InputInfo:
    """One input: its role, its element type, and for token inputs the allowed values: 0..limit-1 without `excluded`.

    Models that count positions by ids (RoBERTa) take a token with the padding id for padding; packed, it cannot occur.
    `padding` is what padded slots hold: models that look for an id must not find it there. `width` is how many numbers
    a token has, as boxes have four: such inputs are [T, width] and [B, S, width]; None: one, [T] and [B, S]. Token
    inputs hold integers, or float32 where they are embeddings.
    Inputs of the role "per_sequence" have a row for every sequence, such as the number of a language: [B], or
    [B, width]; integers 0..limit-1, or float32.
    With `shared` the model has it once for a whole batch: sequences that run together have the same. Packed, it is
    [B] or [B, width] nevertheless, of which the first row is read; padded, it is [] or [width].
    With `fills_padding` padded slots hold `padding` and nothing else, for the model reads them.
    `holds` is one of names.HELD_ROLES where the graph has proved what the values are; None: not known, so the name
    decides. `original` is the name in the original model, where the interface gives it another. An input of the role
    "unread" exists because callers pass it: [T] or [B, S], of any values.
    """

    name: str
    role: str
    limit: int | None
    dtype: str
    excluded: tuple[int, ...] = ()
    padding: int = 0
    width: int | None = None
    original: str | None = None
    fills_padding: bool = False
    shared: bool = False
    holds: str | None = None

    @property
    def original_name(self) -> str:
        """Its name in the original model."""
        return self.original or self.name

    @cached_property
    def holds_embeddings(self) -> bool:
        """Whether it is a token input of embeddings, not ids."""
        return self.role == "tokens" and self.dtype == "float32"

    @cached_property
    def holds_floats(self) -> bool:
        """Whether its values are floating-point numbers."""
        return self.dtype == "float32"

    @cached_property
    def trailing_shape(self) -> tuple[int, ...]:
        """The sizes of its axes after those of tokens, or of sequences."""
        return () if self.width is None else (self.width,)

    @property
    def least_value(self) -> int:
        """The smallest number that it takes: 0, unless that is excluded."""
        return next(value for value in range(len(self.excluded) + 1) if value not in self.excluded)

    @property
    def behind(self) -> tuple[int, ...]:
        """The former name of `trailing_shape`."""
        return self.trailing_shape


@dataclass(frozen=True)
class OutputInfo:
    """One output: "packed" is [T, ...], "per_sequence" [B, ...], "constant" the same for every batch.

    "padded" ones have slots, on any axes: [B, S, ...], [B, H, S, S], [S, B, ...]. `shape` has None for sizes that
    differ from run to run, `dims` says which they are: "B", "S" or "T"; axes that it leaves out are fixed. Both are
    as older versions wrote them where they are None.
    """

    name: str
    layout: str
    dtype: str
    shape: tuple[int | None, ...] | None = None
    dims: tuple[int | str, ...] | None = None

    @cached_property
    def sizes(self) -> tuple[int | str, ...]:
        """The sizes of the axes; those that are left out are fixed."""
        return _LEADING_SIZES[self.layout] if self.dims is None else self.dims

    @cached_property
    def unknown_size(self) -> str | None:
        """A size that is no number and none of B, S and T; None: all are known."""
        named_sizes = (size for size in self.sizes if isinstance(size, str))
        return next((size for size in named_sizes if size not in ("B", "S", "T")), None)

    @cached_property
    def rows_of(self) -> str | None:
        """What has a row: "T" or "B" where that is the first axis, and the only one that differs from run to run."""
        first, *rest = self.sizes or (0,)
        alone = not any(isinstance(size, str) for size in rest)
        return first if isinstance(first, str) and first in ("T", "B") and alone else None

    @property
    def has_token_rows(self) -> bool:
        """Whether a sequence gets a row for every token, [len, ...]."""
        sizes = self.sizes
        count = 1 if sizes[:1] == ("T",) else 2 if sizes[:2] == ("B", "S") else 0
        return count > 0 and not any(isinstance(size, str) for size in sizes[count:])


@dataclass(frozen=True)
class MaskInfo:
    """Which input of the original tells what is padding, and by which of its values.

    `input` None: no input does, every slot is a token. A `plain` mask has two values, the first `kept` one at tokens
    and the first `masked` one at padding; others, as ids, are token inputs too: the `masked` values stand for padding.
    With `lengths` the input is no mask [B, S]: it holds the number of every sequence's tokens, [B] or [B, 1].
    """

    input: str | None
    kept: tuple[int, ...] = (1,)
    masked: tuple[int, ...] = (0,)
    plain: bool = True
    lengths: bool = False

    def filler(self, name: str) -> int:
        """What a token input holds in padded slots."""
        return self.masked[0] if name == self.input and self.masked else 0


@dataclass(frozen=True)
class Profile:
    """What an engine takes in one run: tokens, sequences, and the longest sequence."""

    min_tokens: int
    opt_tokens: int
    max_tokens: int
    max_batch: int
    max_seq_len: int


@dataclass(frozen=True)
class EngineInfo:
    """Where a plan was built, for which profile, and how to tell that the file is whole."""

    tensorrt: str
    gpu_name: str
    compute_capability: str
    profile: Profile
    plan_bytes: int
    plan_sha256: str
    plugin_layers: Mapping[str, int]


@dataclass(frozen=True)
class Metadata:
    """The parsed description; `raw` is the JSON object as it was read, `text` what the model's folder said of texts."""

    interface: str
    precision: str
    inputs: tuple[InputInfo, ...]
    outputs: tuple[OutputInfo, ...]
    max_positions: int | None
    plugins: Mapping[str, int]
    engine: EngineInfo | None
    mask: MaskInfo
    raw: Mapping[str, Any]
    text: TextInfo | None = None
    quantization: QuantizationInfo | None = None

    @property
    def arithmetic(self) -> str:
        """What its GEMMs compute in: fp8, int8, or its precision, which is that of everything else."""
        return self.precision if self.quantization is None else self.quantization.precision

    def filler(self, item: InputInfo) -> int:
        """What a token input holds in padded slots."""
        return self.mask.filler(item.name) if item.name == self.mask.input else item.padding

    @cached_property
    def longest(self) -> int | None:
        """Most tokens of one sequence, by the model's positions and the engine's profile; None: any number."""
        limits = [self.max_positions]
        if self.engine is not None:
            limits += [self.engine.profile.max_seq_len, self.engine.profile.max_tokens]
        return min((limit for limit in limits if limit is not None), default=None)

    def token_inputs(self) -> tuple[InputInfo, ...]:
        """The inputs that hold values of tokens, in the model's order."""
        return self._token_inputs

    def sequence_inputs(self) -> tuple[InputInfo, ...]:
        """The inputs that have a row for every sequence, in the model's order."""
        return self._sequence_inputs

    @cached_property
    def shared_inputs(self) -> tuple[str, ...]:
        """The names of the inputs of sequences that the model takes once for a whole batch."""
        return tuple(item.name for item in self.sequence_inputs() if item.shared)

    @property
    def is_packed(self) -> bool:
        """Whether inputs are [T]: tokens without padding."""
        return self.interface != "padded"

    def own_names(self, columns: Mapping[str, Any]) -> dict[str, Any]:
        """Renames the keys from the original model's input names, where they are those, to this model's."""
        names = self._own_names
        return {names.get(name, name): value for name, value in columns.items()}

    def ids_input(self) -> InputInfo:
        """The token input that a bare list of arrays means: ids, or embeddings where a model takes no ids."""
        return self._ids_input

    def types_input(self) -> InputInfo | None:
        """The token input of token types, or None."""
        return types_among(self._integers, self._ids_input)

    def positions_input(self) -> InputInfo | None:
        """The token input of positions, or None."""
        return positions_among(self._integers)

    def input_of_role(self, role: str) -> InputInfo | None:
        """The one input with this role, or None."""
        return next((item for item in self.inputs if item.role == role), None)

    # Needed in every run, so computed once.

    @cached_property
    def _token_inputs(self) -> tuple[InputInfo, ...]:
        return tuple(item for item in self.inputs if item.role == "tokens")

    @cached_property
    def _sequence_inputs(self) -> tuple[InputInfo, ...]:
        return tuple(item for item in self.inputs if item.role == PER_SEQUENCE)

    @cached_property
    def _ids_input(self) -> InputInfo:
        tokens = [item for item in self._token_inputs if item.width is None]
        return ids_among(self._integers) or [*tokens, *self._token_inputs][0]

    @cached_property
    def _integers(self) -> tuple[InputInfo, ...]:
        """Token inputs of one integer per token."""
        return tuple(item for item in self._token_inputs if item.width is None and not item.holds_embeddings)

    @cached_property
    def _own_names(self) -> dict[str, str]:
        own = {item.name: item.name for item in self.inputs}
        return {item.original: item.name for item in self.inputs if item.original is not None} | own


def parse_metadata(raw: Any, source: str, error: type[Exception] = ContractError) -> Metadata:
    """Checks and types a metadata object.

    Args:
        raw: the decoded JSON object.
        source: what it was read from, for messages.
        error: the exception to raise.

    Raises:
        error: a key is missing or holds something not allowed.
    """
    if not isinstance(raw, dict):
        raise error(f"{source}: the padfree metadata is a {type(raw).__name__}, not an object; make it again")
    if raw.get("format") != FORMAT:
        raise error(
            f"{source}: padfree metadata format {raw.get('format')!r}, this version reads format {FORMAT}; "
            "make the file again with this version of padfree"
        )
    fields = Fields(raw, source, error=error)
    interface = fields.text("interface", INTERFACES)
    ids_by_input = fields.optional_object("coverage").optional_object("excluded_ids")
    rules = fields.optional_object("id_rules")

    def read_input(item: Fields) -> InputInfo:
        name = item.text("name")
        original = item.text("original") if "original" in item else None
        original_name = original or name
        excluded_ids = (
            ids_by_input.integers(original_name, least=-MOST_INT64)
            if interface != "padded" and original_name in ids_by_input
            else ()
        )
        limit = item.optional_integer("limit", least=1, most=MOST_INT64)
        rule = rules.optional_object(original_name)
        padding, fills = rule.optional_integer("padding") or 0, "assumed" in rule and rule.boolean("assumed")
        role, dtype = item.text("role", INPUT_ROLES), item.text("dtype", TYPE_NAMES)
        width = item.optional_integer("width", least=1, most=MOST_WIDTH)
        is_shared = "shared" in item and item.boolean("shared")
        holds = item.text("holds", HELD_ROLES) if "holds" in item else None
        return InputInfo(name, role, limit, dtype, excluded_ids, padding, width, original, fills, is_shared, holds)

    def read_output(item: Fields) -> OutputInfo:
        name, layout, dtype = item.text("name"), item.text("layout", OUTPUT_LAYOUTS), item.text("dtype", TYPE_NAMES)
        return OutputInfo(name, layout, dtype, item.optional_integers("shape"), item.optional_sizes("dims"))

    metadata = Metadata(
        interface=interface,
        precision=fields.text("precision", PRECISIONS),
        inputs=fields.objects("inputs", read_input),
        outputs=fields.objects("outputs", read_output),
        max_positions=fields.optional_integer("max_positions", most=MOST_INT64),
        plugins=fields.counts("plugins"),
        engine=_parse_engine(fields.object("engine")) if "engine" in fields else None,
        mask=_parse_mask(fields),
        raw=raw,
        text=parse_text(fields.object("text")) if raw.get("text") is not None else None,
        quantization=parse_quantization(fields.object("quantization")) if "quantization" in fields else None,
    )
    _check_together(metadata, source, error)
    return metadata


def _parse_mask(fields: Fields) -> MaskInfo:
    """The mask; files that older versions wrote have one of 0 and 1."""
    if "mask" not in fields:
        inputs = fields.objects("inputs", lambda item: (item.text("name"), item.text("role", INPUT_ROLES)))
        return MaskInfo(next((name for name, role in inputs if role == "mask"), "attention_mask"))
    mask = fields.optional_object("mask")
    if not mask.names():
        return MaskInfo(None)
    kept_values, masked = (mask.integers(name, least=-MOST_INT64) for name in ("kept", "masked"))
    for name, values in (("kept", kept_values), ("masked", masked)):
        if not values:
            raise mask.fail(name, "one value or more")
    lengths = "lengths" in mask and mask.boolean("lengths")
    return MaskInfo(mask.text("input"), kept_values, masked, mask.boolean("plain"), lengths)


def _parse_engine(fields: Fields) -> EngineInfo:
    sizes = fields.object("profile")
    profile = Profile(**{name: sizes.integer(name, least=1) for name in Profile.__dataclass_fields__})
    if profile.min_tokens > profile.max_tokens:
        raise sizes.fail("min_tokens", f"at most {profile.max_tokens}, which is max_tokens")
    return EngineInfo(
        tensorrt=fields.text("tensorrt", VERSION),
        gpu_name=fields.text("gpu_name"),
        compute_capability=fields.text("compute_capability", CAPABILITY),
        profile=profile,
        plan_bytes=fields.integer("plan_bytes", most=MOST_INT64),
        plan_sha256=fields.text("plan_sha256", DIGEST),
        plugin_layers=fields.counts("plugin_layers"),
    )


def _check_together(metadata: Metadata, source: str, error: type[Exception]) -> None:
    """What entries that are right by themselves must be to each other."""
    required_roles = {"packed": ["tokens", "seq_lens"], "varseqlen": ["tokens", "cu_seqlens", "max_seqlen"]}
    for role in required_roles.get(metadata.interface, ["tokens"]):
        if all(item.role != role or not (item.width is None or item.holds_embeddings) for item in metadata.inputs):
            raise error(
                f"{source}: a {metadata.interface} model needs an input of role '{role}', the metadata lists none; "
                "make the file again"
            )
    for kind, names in (
        ("inputs", [item.name for item in metadata.inputs]),
        ("outputs", [item.name for item in metadata.outputs]),
    ):
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None or not names:
            problem = f"'{twice}' twice" if names else "none"
            raise error(f"{source}: damaged padfree metadata: {kind} has {problem}; make the file again")

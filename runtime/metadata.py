# SPDX-License-Identifier: Apache-2.0
"""The description that travels with a rewritten model (ONNX metadata) and with a plan (a JSON file beside it)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import SessionError

ONNX_METADATA_KEY = "padfree"
FORMAT = 1
INTERFACES = ("packed", "padded")
INPUT_ROLES = ("tokens", "seq_lens", "max_seqlen", "mask")
OUTPUT_LAYOUTS = ("packed", "per_sequence", "padded")
HASH_CHUNK_BYTES = 1 << 22


@dataclass(frozen=True)
class InputInfo:
    """One input: its role, its element type, and for token inputs the allowed values: 0..limit-1 without `excluded`.

    Models that count positions by ids (RoBERTa) take a token with the padding id for padding; packed, it cannot occur.
    """

    name: str
    role: str
    limit: int | None
    dtype: str
    excluded: tuple[int, ...] = ()


@dataclass(frozen=True)
class OutputInfo:
    """One output: "packed" is [T, ...], "per_sequence" [B, ...], "padded" [B, S, ...].

    `shape` has None for sizes that differ from run to run; it is None itself in metadata that older versions wrote.
    """

    name: str
    layout: str
    dtype: str
    shape: tuple[int | None, ...] | None = None


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
    """The parsed description; `raw` is the JSON object as it was read."""

    interface: str
    precision: str
    inputs: tuple[InputInfo, ...]
    outputs: tuple[OutputInfo, ...]
    max_positions: int | None
    plugins: Mapping[str, int]
    engine: EngineInfo | None
    raw: Mapping[str, Any]

    def token_inputs(self) -> tuple[InputInfo, ...]:
        """The inputs that hold one value a token, in the model's order."""
        return tuple(item for item in self.inputs if item.role == "tokens")

    def ids_input(self) -> InputInfo:
        """The token input that a bare list of id arrays means."""
        tokens = self.token_inputs()
        return next((item for item in tokens if item.name == "input_ids"), tokens[0])

    def input_of_role(self, role: str) -> InputInfo | None:
        """The one input with this role, or None."""
        return next((item for item in self.inputs if item.role == role), None)


def parse_metadata(raw: Any, source: str) -> Metadata:
    """Checks and types a metadata object.

    Args:
        raw: the decoded JSON object.
        source: what it was read from, for messages.

    Raises:
        SessionError: a key is missing or holds something not allowed.
    """
    if not isinstance(raw, dict):
        raise SessionError(f"{source}: the padfree metadata is a {type(raw).__name__}, not an object; make it again")
    if raw.get("format") != FORMAT:
        raise SessionError(
            f"{source}: padfree metadata format {raw.get('format')!r}, this version reads format {FORMAT}; "
            "make the file again with this version of padfree"
        )
    try:
        excluded = raw.get("coverage", {}).get("excluded_ids", {}) if raw["interface"] == "packed" else {}
        inputs = tuple(
            InputInfo(
                str(item["name"]),
                str(item["role"]),
                _optional_int(item.get("limit")),
                str(item["dtype"]),
                tuple(int(value) for value in excluded.get(item["name"], ())),
            )
            for item in raw["inputs"]
        )
        outputs = tuple(
            OutputInfo(str(item["name"]), str(item["layout"]), str(item["dtype"]), _shape(item.get("shape")))
            for item in raw["outputs"]
        )
        metadata = Metadata(
            interface=str(raw["interface"]),
            precision=str(raw["precision"]),
            inputs=inputs,
            outputs=outputs,
            max_positions=_optional_int(raw.get("max_positions")),
            plugins={str(name): int(count) for name, count in raw.get("plugins", {}).items()},
            engine=_parse_engine(raw["engine"]) if "engine" in raw else None,
            raw=raw,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise SessionError(
            f"{source}: damaged padfree metadata ({type(error).__name__}: {error}); make the file again"
        ) from error
    _check_allowed(metadata, source)
    return metadata


def sidecar_path(plan: Path) -> Path:
    """Where the metadata of a plan lies: model.plan -> model.plan.json."""
    return plan.with_name(plan.name + ".json")


def read_sidecar(plan: Path) -> Metadata:
    """Reads the metadata beside a plan.

    Raises:
        SessionError: no such plan, no file beside it, or not the metadata of an engine.
    """
    if not plan.is_file():
        raise SessionError(f"{plan}: no such plan; build one with: padfree build model.onnx -o {plan}")
    path = sidecar_path(plan)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise SessionError(
            f"{plan}: its metadata {path.name} is missing; copy it along with the plan, or build the plan again "
            f"with: padfree build model.onnx -o {plan}"
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise SessionError(f"{path}: cannot be read ({error}); build the plan again with padfree build") from error
    try:
        raw = json.loads(text)
    except json.JSONDecodeError as error:
        raise SessionError(f"{path}: not JSON ({error}); build the plan again with padfree build") from error
    metadata = parse_metadata(raw, str(path))
    if metadata.engine is None:
        raise SessionError(f"{path}: holds no 'engine' entry, so it is not a plan's metadata; build the plan again")
    return metadata


def open_plan(plan: Path) -> Metadata:
    """Reads a plan's metadata and checks that the plan is whole; needs neither TensorRT nor a GPU.

    Raises:
        SessionError: as read_sidecar and check_plan_bytes.
    """
    metadata = read_sidecar(plan)
    assert metadata.engine is not None  # read_sidecar refuses metadata without it
    check_plan_bytes(plan, metadata.engine)
    return metadata


def check_plan_bytes(plan: Path, engine: EngineInfo) -> None:
    """Compares the plan's size and SHA-256 with the metadata.

    Raises:
        SessionError: the plan is truncated, changed, or not the one that the metadata describes.
    """
    size = plan.stat().st_size
    if size != engine.plan_bytes:
        raise SessionError(
            f"{plan}: {size} bytes, its metadata says {engine.plan_bytes}: the plan is truncated or not the one that "
            "was built; copy both files again or build the plan again"
        )
    digest = hashlib.sha256()
    with plan.open("rb") as file:
        while chunk := file.read(HASH_CHUNK_BYTES):
            digest.update(chunk)
    if digest.hexdigest() != engine.plan_sha256:
        raise SessionError(
            f"{plan}: SHA-256 {digest.hexdigest()[:16]}..., its metadata says {engine.plan_sha256[:16]}...: the plan "
            "was changed or damaged; copy both files again or build the plan again"
        )


def _optional_int(value: Any) -> int | None:
    return None if value is None else int(value)


def _shape(value: Any) -> tuple[int | None, ...] | None:
    return None if value is None else tuple(_optional_int(size) for size in value)


def _parse_engine(raw: Mapping[str, Any]) -> EngineInfo:
    profile = raw["profile"]
    return EngineInfo(
        tensorrt=str(raw["tensorrt"]),
        gpu_name=str(raw["gpu_name"]),
        compute_capability=str(raw["compute_capability"]),
        profile=Profile(
            min_tokens=int(profile["min_tokens"]),
            opt_tokens=int(profile["opt_tokens"]),
            max_tokens=int(profile["max_tokens"]),
            max_batch=int(profile["max_batch"]),
            max_seq_len=int(profile["max_seq_len"]),
        ),
        plan_bytes=int(raw["plan_bytes"]),
        plan_sha256=str(raw["plan_sha256"]),
        plugin_layers={str(name): int(count) for name, count in raw["plugin_layers"].items()},
    )


def _check_allowed(metadata: Metadata, source: str) -> None:
    choices: list[tuple[str, str, tuple[str, ...]]] = [("interface", metadata.interface, INTERFACES)]
    choices += [(f"role of input '{item.name}'", item.role, INPUT_ROLES) for item in metadata.inputs]
    choices += [(f"layout of output '{item.name}'", item.layout, OUTPUT_LAYOUTS) for item in metadata.outputs]
    for what, value, allowed in choices:
        if value not in allowed:
            raise SessionError(f"{source}: {what} is {value!r}, allowed: {', '.join(allowed)}; make the file again")
    needed = ["tokens", "seq_lens"] if metadata.interface == "packed" else ["tokens"]
    for role in needed:
        if metadata.input_of_role(role) is None:
            raise SessionError(
                f"{source}: a {metadata.interface} model needs an input of role '{role}', the metadata lists none; "
                "make the file again"
            )

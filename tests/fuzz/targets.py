# SPDX-License-Identifier: Apache-2.0
"""The doors (entry points): what is damaged, and what reads it, which has to succeed or fail with a proper message."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np
from padfree.builder.cli import main
from padfree.onnx_tools import rewrite

from tests.support import exports
from tests.support.encoder import HIDDEN, one_layer

from . import lengths, requests
from .damage import damaged_document, damaged_model
from .finds import FindError

PLAN = b"a plan that nothing here reads"
UNEXPECTED = ("PADFREE_DEBUG", "Traceback", "defect of padfree", "report this")


@dataclass(frozen=True)
class Target:
    """Undamaged inputs by name, how to damage one, and what reads it in a folder of its own.

    `missing` gives the reason why nothing can be read on this machine, `most_bytes` limits the address space of the
    process that reads, and `at_once` is how many inputs one process reads.
    """

    bases: Callable[[], Mapping[str, bytes]]
    damage: Callable[[bytes, np.random.Generator], bytes]
    read: Callable[[bytes, Path], None]
    missing: Callable[[], str | None] = lambda: None
    most_bytes: int | None = 6 << 30
    at_once: int = 25

    def case(self, seed: int) -> bytes:
        """The damaged input that a seed stands for."""
        rng, bases = np.random.default_rng(seed), self.bases()
        base = bases[sorted(bases)[int(rng.integers(len(bases)))]]
        return self.damage(base, rng)


def command(folder: Path, *arguments: str) -> int:
    """Runs padfree; returns its exit code. Raises FindError for an unforeseen error, or for files elsewhere."""
    said = io.StringIO()
    before = {path for path in folder.parent.iterdir() if path != folder}
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        code = main(arguments)
    text = " ".join(said.getvalue().split())
    if code not in (0, 1) or any(word in text for word in UNEXPECTED):
        raise FindError(f"padfree {arguments[0]} ended with {code}: {text[-400:]}")
    if code == 1 and not text:
        raise FindError(f"padfree {arguments[0]} failed without a word")
    if "\x1b" in text or "\u202e" in text:
        raise FindError(f"padfree {arguments[0]} prints the file's own control characters")
    if {path for path in folder.parent.iterdir() if path != folder} != before:
        raise FindError(f"padfree {arguments[0]} wrote beside the folder it was given")
    left = [path.name for path in folder.rglob("*") if ".partial" in path.name]
    if left:
        raise FindError(f"padfree {arguments[0]} left {left}")
    return code


@functools.cache
def _models() -> Mapping[str, bytes]:
    builder, hidden = one_layer()
    builder.op("Identity", hidden, output="y")
    results = {"hand": builder.model({"y": ["batch", "sequence", HIDDEN]}).SerializeToString()}
    for name in ("attn_pool_ts17", "mean_einsum_ts17", "q_dynamic"):
        results[name] = exports.load(name).SerializeToString()
    return results


def _read_model(data: bytes, folder: Path) -> None:
    path = folder / "model.onnx"
    path.write_bytes(data)
    command(folder, "inspect", str(path))
    command(folder, "optimize", str(path), "-o", str(folder / "packed.onnx"))


@functools.cache
def _rewrite() -> Mapping[str, bytes]:
    results = {}
    for interface in ("packed", "padded"):
        builder, hidden = one_layer()
        builder.op("Identity", hidden, output="y")
        model = builder.model({"y": ["batch", "sequence", HIDDEN]})
        results[interface] = rewrite(model, interface=interface).model.SerializeToString()
    return results


def _read_rewritten(data: bytes, folder: Path) -> None:
    path, batch = folder / "packed.onnx", folder / "batch.npz"
    path.write_bytes(data)
    np.savez(batch, input_ids=np.asarray([3, 4, 5, 6], np.int32), seq_lens=np.asarray([1, 3], np.int32))
    if command(folder, "inspect", str(path)):
        return  # docs/reference/security.md: onnxruntime may crash the process on files that `inspect` refuses
    command(folder, "run", str(path), "--input", str(batch), "-o", str(folder / "out.npz"))
    command(folder, "triton", str(path), "-o", str(folder / "repository"), "--name", "model")


@functools.cache
def _sidecars() -> Mapping[str, bytes]:
    tokens = [{"name": name, "role": "tokens", "limit": limit, "dtype": "int32"}
              for name, limit in (("input_ids", 100), ("token_type_ids", 2))]  # fmt: skip
    lengths = {"name": "seq_lens", "role": "seq_lens", "limit": None, "dtype": "int32"}
    outputs = [
        {"name": "last_hidden_state", "layout": "packed", "dtype": "float32", "shape": [None, HIDDEN]},
        {"name": "pooled", "layout": "per_sequence", "dtype": "float32", "shape": [None, HIDDEN]},
    ]
    engine = {
        "plan_sha256": hashlib.sha256(PLAN).hexdigest(),
        "plan_bytes": len(PLAN),
        "tensorrt": "10.6.0",
        "gpu_name": "NVIDIA H200",
        "compute_capability": "9.0",
        "profile": {"min_tokens": 1, "opt_tokens": 9, "max_tokens": 64, "max_batch": 4, "max_seq_len": 16},
    }
    packed = {
        "format": 1, "interface": "packed", "precision": "fp16", "max_positions": 16, "opset": 17, "padfree": "0.1",
        "inputs": [*tokens, lengths], "outputs": outputs, "engine": engine,
        "coverage": {"excluded_ids": {"input_ids": [1]}}, "id_rules": {},
    }  # fmt: skip
    return {"packed": json.dumps(packed).encode()}


def _read_sidecar(data: bytes, folder: Path) -> None:
    plan = folder / "model.plan"
    plan.write_bytes(PLAN)
    (folder / "model.plan.json").write_bytes(data)
    command(folder, "inspect", str(plan))
    command(folder, "triton", str(plan), "-o", str(folder / "repository"), "--name", "model")


def _read_arrays(data: bytes, folder: Path) -> None:
    path, batch = folder / "packed.onnx", folder / "batch.npz"
    path.write_bytes(requests.packed_model())
    if requests.write(data, batch):
        command(folder, "run", str(path), "--input", str(batch), "-o", str(folder / "out.npz"))


TARGETS: Mapping[str, Target] = MappingProxyType(
    {
        "models": Target(_models, damaged_model, _read_model),
        "rewritten": Target(_rewrite, damaged_model, _read_rewritten),
        "sidecars": Target(_sidecars, functools.partial(damaged_document, as_bytes=0.2), _read_sidecar),
        "bodies": Target(
            requests.bodies,
            functools.partial(damaged_document, as_bytes=0.3),
            requests.read_body,
            requests.missing,
            at_once=1000,
        ),
        "arrays": Target(requests.arrays, requests.damage_arrays, _read_arrays),
        "lengths": Target(
            lengths.bases, lengths.damage, lengths.read, lengths.missing, most_bytes=None, at_once=1000
        ),  # CUDA reserves address space
    }
)

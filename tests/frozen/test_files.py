# SPDX-License-Identifier: Apache-2.0
"""Files that commit 6346721a wrote are still read: metadata, a packed file, a bulk job, a repository."""

from __future__ import annotations

import ast
import gzip
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from padfree.builder.triton import ServingOptions, write_repository
from padfree.contract.metadata import MaskInfo, Profile
from padfree.runtime import Session
from padfree.runtime.plan_files import open_plan, sidecar_path

pytest.importorskip("pyarrow")

from .make_fixtures import FILES, HALF_DONE, KEPT_PARTS, LENGTHS, ROWS, SHARD_ROWS, request
from .surface import ROOT, importable


def unpack(path: Path, folder: Path) -> Path:
    """Unpacks a model, which is stored compressed, into a folder."""
    model = folder / path.name
    model.write_bytes(gzip.decompress(path.with_name(f"{path.name}.gz").read_bytes()))
    return model


def test_a_plan_is_described_by_its_metadata(tmp_path: Path) -> None:
    plan = tmp_path / "model.plan"
    shutil.copyfile(FILES / "plan", plan)
    shutil.copyfile(FILES / "plan.json", sidecar_path(plan))
    metadata = open_plan(plan)
    assert metadata.engine is not None
    assert metadata.engine.profile == Profile(1, 60, 100, 12, 16)
    assert metadata.engine.plugin_layers == {"PadfreeEmbedding": 1, "PadfreeAttention": 1}
    assert metadata.mask == MaskInfo("attention_mask")
    assert [(item.name, item.role, item.limit) for item in metadata.token_inputs()] == [
        ("input_ids", "tokens", 100),
        ("token_type_ids", "tokens", 2),
    ]


def test_a_packed_file_gives_what_it_gave(tmp_path: Path) -> None:
    ids = [np.arange(1, 1 + length, dtype=np.int32) for length in LENGTHS]
    results = Session(unpack(FILES / "packed.onnx", tmp_path)).run(
        {"input_ids": ids, "token_type_ids": [np.zeros_like(row) for row in ids]}
    )
    with np.load(FILES / "packed.npz") as expected:
        assert {name.split(".")[0] for name in expected} == {*results}
        for name, rows in results.items():
            for at, row in enumerate(rows):
                np.testing.assert_allclose(row, expected[f"{name}.{at}"], rtol=1e-5, atol=1e-5)


def test_the_digest_of_a_bulk_job_is_the_one_in_its_parts() -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    from padfree.bulk.locations import Location
    from padfree.bulk.manifest import read_manifest
    from padfree.bulk.parts import KEY

    output = FILES / "bulk" / "out"
    digest = read_manifest(Location.of(str(output))).digest
    parts = sorted(output.glob("part-*"))
    held = [json.loads(parquet.read_schema(part).metadata[KEY])["manifest"] for part in parts]
    assert held == [digest] * KEPT_PARTS


def test_a_half_done_bulk_job_is_resumed(tmp_path: Path) -> None:
    """The job resumes in another folder: its manifest is moved, and its parts get the moved manifest's digest.

    The test above checks that a manifest's digest is computed as it was then.
    """
    parquet = pytest.importorskip("pyarrow.parquet")
    from padfree.bulk.locations import Location
    from padfree.bulk.manifest import read_manifest
    from padfree.bulk.parts import KEY

    from tests.support.bulk_jobs import result_files, run_here

    folder, fresh = tmp_path / "resumed", tmp_path / "fresh"
    shutil.copytree(FILES / "bulk", folder)
    unpack(folder / "model.onnx", folder)
    output = folder / "out"
    manifest = output / "_manifest.json"
    manifest.write_text(manifest.read_text("utf-8").replace(str(HALF_DONE), str(folder)), "utf-8")
    digest = read_manifest(Location.of(str(output))).digest
    before = {}
    for part in sorted(output.glob("part-*")):
        table = parquet.read_table(part)
        held = {**json.loads(table.schema.metadata[KEY]), "manifest": digest}
        parquet.write_table(table.replace_schema_metadata({KEY: json.dumps(held).encode()}), part)
        before[part.name] = part.read_bytes()
    run_here(request(folder))
    after = result_files(output)
    assert len(after) == ROWS // SHARD_ROWS
    assert {name: after[name] for name in before} == before  # used as they are

    shutil.copytree(folder, fresh, ignore=shutil.ignore_patterns("out"))
    run_here(request(fresh))
    for name in result_files(fresh / "out"):
        resumed, whole = (parquet.read_table(job / "out" / name) for job in (folder, fresh))
        assert resumed.equals(whole), name


def test_models_of_a_triton_repository_import_what_there_is() -> None:
    files = sorted((FILES / "triton").glob("*/1/model.py"))
    assert [path.parts[-3] for path in files] == ["bert", "bert_tokenizer"]
    for path in files:
        imported = [node for node in ast.parse(path.read_text("utf-8")).body if isinstance(node, ast.ImportFrom)]
        names = [f"{node.module}:{alias.name}" for node in imported for alias in node.names]
        assert names, path
        assert all(importable(name, ROOT) for name in names), names


def test_a_triton_repository_takes_a_second_model(tmp_path: Path) -> None:
    pytest.importorskip("tritonclient.grpc")
    folder, model = tmp_path / "triton", unpack(FILES / "packed.onnx", tmp_path)
    shutil.copytree(FILES / "triton", folder)
    known = {path: path.read_bytes() for path in (FILES / "triton").glob("bert*/**/*") if path.is_file()}
    written = write_repository(model, folder, ServingOptions("second"), overwrite=True)
    assert written.models == ("second",)
    assert {item.model for item in written.needs} == {"bert", "second"}
    for path, content in known.items():
        assert (folder / path.relative_to(FILES / "triton")).read_bytes() == content

# SPDX-License-Identifier: Apache-2.0
"""Results are not mixed with other inputs, options, models, drivers or files; and full disks."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from padfree.builder import cli
from padfree.bulk import BulkError, LocalWorkers, Request, Running, embed, on_cpu
from padfree.bulk.locations import Location
from padfree.bulk.lock import LOCK, only_driver
from padfree.bulk.manifest import MANIFEST
from padfree.runtime import SessionError
from pyarrow import parquet

from tests.support.bulk_jobs import parts_of, result_files, run_here, texts, write_lines
from tests.support.served_models import write_model


@pytest.fixture
def request_(tmp_path: Path, embedder: Path) -> Request:
    """The request of a result with three shards, one of which is missing."""
    (tmp_path / "in").mkdir()
    for name in ("a.txt", "b.txt", "c.txt"):
        (tmp_path / "in" / name).write_text("\n".join(texts(20, seed=ord(name[0]))) + "\n", encoding="utf-8")
    asked = Request([str(tmp_path / "in")], str(tmp_path / "out"), embedder, shard_rows=20)
    run_here(asked)
    (tmp_path / "out" / "part-000001.parquet").unlink()
    return asked


def check_refusal(request: Request, match: str) -> None:
    output = Path(request.output)
    before = {path.name: path.read_bytes() for path in output.iterdir() if path.is_file() and path.name != "_lock"}
    with pytest.raises((BulkError, SessionError), match=match):
        run_here(request)
    after = {path.name: path.read_bytes() for path in output.iterdir() if path.is_file() and path.name != "_lock"}
    assert after == before


def test_a_changed_input(request_: Request, tmp_path: Path) -> None:
    file = tmp_path / "in" / "b.txt"
    content = file.read_text("utf-8")
    file.write_text(content[:-2] + "x\n", encoding="utf-8")  # the same size
    check_refusal(request_, "b.txt: the input has another content now")
    file.write_text(content + "more\n", encoding="utf-8")
    check_refusal(request_, r"b.txt: the input had \d+ bytes and has \d+ now")
    file.unlink()
    check_refusal(request_, r"the input .*b.txt is not among them now")
    file.write_text(content, encoding="utf-8")  # another time, but the same bytes
    (tmp_path / "in" / "d.txt").write_text("new\n", encoding="utf-8")
    check_refusal(request_, r"the input .*d.txt is new")
    (tmp_path / "in" / "d.txt").unlink()
    assert run_here(request_).report.shards_found == 2


def test_a_later_failure_leaves_a_folder_without_a_lock_that_goes_on(tmp_path: Path, embedder: Path) -> None:
    """An input changes after the manifest is written and before its shard is done."""
    names = ("a.txt", "b.txt", "c.txt")
    contents = {name: "\n".join(texts(20, seed=ord(name[0]))) + "\n" for name in names}
    for name, content in contents.items():
        (tmp_path / name).write_text(content, encoding="utf-8")
    output, inputs = tmp_path / "out", [str(tmp_path / name) for name in names]
    asked = Request(inputs, str(output), embedder, shard_rows=20)

    def change(line: str) -> None:
        if line.endswith("3 to do"):
            assert (output / LOCK).exists()
            (tmp_path / "c.txt").write_text(contents["c.txt"][:-2] + "x\n", encoding="utf-8")  # the same size

    with pytest.raises(BulkError, match=r"c\.txt: "):
        embed(asked, Running(tokenizers=1), lambda spec: LocalWorkers(spec, *on_cpu(1)), say=change)
    left = {path.name for path in output.iterdir()}
    assert MANIFEST in left
    assert LOCK not in left
    parts = parts_of(output)
    (tmp_path / "c.txt").write_text(contents["c.txt"], encoding="utf-8")
    assert run_here(asked).report.shards_found == parts
    run_here(replace(asked, output=str(tmp_path / "alone")))
    assert result_files(output) == result_files(tmp_path / "alone")


def test_other_options_and_another_model(request_: Request, tmp_path: Path, embedder: Path) -> None:
    options: list[tuple[dict[str, Any], str]] = [
        ({"max_length": 64}, "--max-length was 128 and is 64 now"),
        ({"dtype": "float16"}, "--dtype was 'float32' and is 'float16' now"),
        ({"prompt": "query"}, "the prompt was '' and is 'query: ' now"),
        ({"shard_rows": 21}, "--shard-rows was 20 and is 21 now"),
        ({"max_tokens": 100}, "--max-tokens was 16384 and is 100 now"),
    ]
    for changed, message in options:
        check_refusal(replace(request_, **changed), message)
    other = tmp_path / "other.onnx"
    content = embedder.read_bytes()
    at = content.rindex(b"sums")  # the graph's name
    other.write_bytes(content[:at] + b"Sums" + content[at + 4 :])
    tokenizer = embedder.with_name(embedder.name + ".tokenizer.json")
    other.with_name(other.name + ".tokenizer.json").write_bytes(tokenizer.read_bytes())
    check_refusal(replace(request_, model=other), r"the model was embedder.onnx \(.*\) and is other.onnx \(.*\) now")


def test_a_second_driver(request_: Request) -> None:
    with only_driver(Location.of(request_.output)):
        check_refusal(request_, rf"another driver is at work there \(process {os.getpid()} on ")
    assert run_here(request_).report.texts == 60


def test_a_folder_of_others(request_: Request, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years", encoding="utf-8")
    check_refusal(replace(request_, output=str(tmp_path / "mine")), "holds thesis.txt and no manifest")
    thesis = tmp_path / "mine" / "thesis.txt"
    with pytest.raises(BulkError, match=r"thesis.txt: is a file, and results are a folder of files"):
        run_here(replace(request_, output=str(thesis)))
    assert thesis.read_text("utf-8") == "years"
    check_refusal(replace(request_, inputs=[str(tmp_path)]), "lie in each other")
    for name in (MANIFEST, "part-000000.parquet"):
        content = (tmp_path / "out" / name).read_bytes()
        (tmp_path / "mine" / name).write_bytes(content)
    (tmp_path / "mine" / "thesis.txt").rename(tmp_path / "mine" / "part-000007.parquet")
    check_refusal(replace(request_, output=str(tmp_path / "mine")), "part-000007.parquet: is no part of this result")


def test_parts_of_another_result(request_: Request, tmp_path: Path) -> None:
    run_here(replace(request_, output=str(tmp_path / "two"), shard_rows=30))
    (tmp_path / "two" / "part-000001.parquet").rename(tmp_path / "out" / "part-000001.parquet")
    check_refusal(request_, r"part-000001.parquet: shard 1 of manifest \w+\.\.\., expected shard 1 of \w+")


def test_a_damaged_manifest(request_: Request, tmp_path: Path) -> None:
    file = tmp_path / "out" / MANIFEST
    content = file.read_text("utf-8")
    for before, after, match in (
        ('"size": ', '"size": -', r"shards.pieces\[0\].size is|inputs\[0\].size is"),
        ('"kind": "padfree', '"kind": "other', "kind is"),
        ("{", "", "not JSON"),
    ):
        file.write_text(content.replace(before, after, 1), encoding="utf-8")
        check_refusal(request_, match)


def test_inputs_that_cannot_be_read(tmp_path: Path, embedder: Path) -> None:
    parquet.write_table(pa.table({"text": ["a"], "n": [1.5]}), tmp_path / "t.parquet")
    twice = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["text", "text"])
    parquet.write_table(twice, tmp_path / "twice.parquet")
    (tmp_path / "cut.parquet").write_bytes((tmp_path / "t.parquet").read_bytes()[:-7])
    (tmp_path / "open.csv").write_text('text\na\n"a\n', encoding="utf-8")
    (tmp_path / "tabs.csv").write_text("id\ttext\n1\ta\n", encoding="utf-8")
    (tmp_path / "mac.csv").write_text("id,text\r1,a\r", encoding="utf-8", newline="")
    (tmp_path / "wide.txt").write_text("a cat\n", encoding="utf-16")
    (tmp_path / "wide.jsonl").write_bytes('{"text": "a"}\n'.encode("utf-16"))
    os.mkfifo(tmp_path / "pipe.txt")
    (tmp_path / "t.doc").write_text("x", encoding="utf-8")
    (tmp_path / "t.csv").write_text("text,text\na,b\n", encoding="utf-8")
    (tmp_path / "empty.txt").write_text("", encoding="utf-8")
    (tmp_path / "t.jsonl.gz").write_text("", encoding="utf-8")
    (tmp_path / "folder").mkdir()
    write_lines(tmp_path / "t.jsonl", [{"text": "a", "id": 1.5}])
    cases: list[tuple[list[str], dict[str, Any], str]] = [
        (["nothing.txt"], {}, "nothing.txt: no such file or folder"),
        (["folder"], {}, "folder: no files with .parquet, .jsonl"),
        (["t.doc"], {}, "t.doc: unknown kind of file, allowed: .parquet"),
        (["t.jsonl.gz"], {}, "t.jsonl.gz: unknown kind of file.*unpack it first"),
        (["empty.txt"], {}, "there are no rows"),
        (["cut.parquet"], {}, "cut.parquet: not a whole parquet file"),
        (["open.csv"], {}, r"open.csv: a double quote is never closed from row 1 on \(the first is 0\)"),
        (["tabs.csv"], {}, r"no column 'text', there are 'id\\ttext'; separate columns with commas, not tabs"),
        (["mac.csv"], {}, "mac.csv: the first line names no columns .*carriage return alone"),
        (["wide.txt"], {}, "wide.txt: begins like a file in UTF-16, allowed: UTF-8; convert it"),
        (["wide.jsonl"], {}, "wide.jsonl: begins like a file in UTF-16"),
        (["pipe.txt"], {}, "pipe.txt: is a stream, and .*; save it, as texts.txt, and pass that"),
        (["t.csv"], {}, "t.csv: the first line names no columns, or one of them twice"),
        (["twice.parquet"], {}, "twice.parquet: the column 'text' is there 2 times, allowed: once"),
        (["t.parquet"], {"columns": ("body",)}, "t.parquet: no column 'body', there are text, n"),
        (["t.parquet"], {"columns": ("n",)}, "the column 'n' is double, allowed: string or binary"),
        (["t.parquet"], {"id_column": "n"}, "the column 'n' is double, allowed: integers"),
        (["t.jsonl"], {"columns": ("body",)}, "t.jsonl: no column 'body', there are text, id"),
        (["t.jsonl"], {"id_column": "id"}, "t.jsonl: no 'id' that is an integer or a string"),
        (["t.parquet", "t.parquet"], {}, "t.parquet: given twice"),
    ]
    for inputs, changed, match in cases:
        request = Request([str(tmp_path / name) for name in inputs], str(tmp_path / "out"), embedder, **changed)
        with pytest.raises(BulkError, match=match):
            run_here(request)
        assert not (tmp_path / "out").exists()


def test_models_that_do_not_fit(tmp_path: Path, embedder: Path, reranker: Path) -> None:
    (tmp_path / "in.txt").write_text("a\n", encoding="utf-8")
    request = Request([str(tmp_path / "in.txt")], str(tmp_path / "out"), embedder)
    cases: list[tuple[dict[str, Any], str]] = [
        ({"model": reranker}, "is for the task 'rerank', which is not for padfree embed; call padfree rerank"),
        ({"columns": ("a", "b")}, "is for the task 'embed', which is not for padfree rerank; call padfree embed"),
        ({"head": "rows"}, "--head rows: the model's outputs are sentence_embedding"),
        ({"prompt": "poem"}, "--prompt poem: the model's prompts are query"),
        ({"max_length": 4096}, "--max-length 4096: the model takes 128 tokens"),
        ({"max_tokens": 1 << 20}, "batches of 1048576 tokens, the model takes 16384"),
        ({"tokenizer": tmp_path / "none.json"}, "none.json: no such tokenizer"),
    ]
    for changed, match in cases:
        with pytest.raises((BulkError, SessionError), match=match):
            run_here(replace(request, **changed))
    nameless = write_model(tmp_path / "rows.onnx", output="answer")
    with pytest.raises(SessionError, match=r"pass --head NAME$"):  # bulk jobs have no option for the task
        run_here(replace(request, model=nameless))
    with pytest.raises(BulkError, match="--shard-rows 0: allowed: 1 or more"):
        replace(request, shard_rows=0)


def test_a_full_disk_costs_nothing_but_the_shards_that_were_under_way(tmp_path: Path, embedder: Path) -> None:
    """A limit on the size of files stands in for a full disk; the system reports both in the same way.

    The first shard is written while the second one fails, and may come too late.
    """
    small, large = texts(40), texts(4000, seed=1)
    for name, some in (("a.txt", small), ("b.txt", large)):
        (tmp_path / name).write_text("\n".join(some) + "\n", encoding="utf-8")
    output, alone = tmp_path / "out", tmp_path / "alone"
    inputs = [str(tmp_path / "a.txt"), str(tmp_path / "b.txt")]
    options = ["--input", *inputs, "-o", str(output), "--engine", str(embedder), "--shard-rows", "4000"]
    command = f"ulimit -f 64; exec {sys.executable} -m padfree.builder.cli embed {' '.join(options)}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 1
    assert "part-000001.parquet: cannot be written (File too large); check permissions and room" in done.stderr
    parts = [path.name for path in output.glob("part-*") if not path.name.endswith(".partial")]
    assert parts in ([], ["part-000000.parquet"])
    request = Request(inputs, str(output), embedder, shard_rows=4000)
    assert run_here(request).report.shards_found == len(parts)
    assert not [path for path in output.iterdir() if path.name.endswith(".partial")]
    run_here(replace(request, output=str(alone)))
    assert result_files(output) == result_files(alone)


def test_a_program_that_starts_the_work_when_it_is_imported_is_told_so(tmp_path: Path, embedder: Path) -> None:
    """Workers import the program, and would become drivers with workers of their own."""
    (tmp_path / "texts.txt").write_text("\n".join(texts(3)) + "\n", encoding="utf-8")
    program = tmp_path / "program.py"
    program.write_text(
        "from pathlib import Path\n"
        "from padfree.bulk import LocalWorkers, Request, Running, embed, on_cpu\n"
        f"asked = Request([{str(tmp_path / 'texts.txt')!r}], {str(tmp_path / 'out')!r}, Path({str(embedder)!r}))\n"
        "embed(asked, Running(), lambda spec: LocalWorkers(spec, *on_cpu(1)))\n",
        encoding="utf-8",
    )
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True)
    assert done.returncode == 1
    assert 'move what it does below: if __name__ == "__main__":' in done.stderr
    assert "another driver" not in done.stderr
    program.write_text(
        program.read_text("utf-8").replace("embed(asked", 'if __name__ == "__main__":\n    embed(asked'),
        encoding="utf-8",
    )
    assert subprocess.run([sys.executable, str(program)], capture_output=True, text=True).returncode == 0
    assert parts_of(tmp_path / "out") == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"columns": ("body",)}, "no column 'body', there are text, id; name one of them with --text"),
        ({"columns": ("text", "body")}, "no column 'body', there are text, id; name one of them with --document"),
        ({"id_column": "key"}, "no column 'key', there are text, id; name one of them with --id"),
        ({"columns": ("text", "id"), "prompt": "x"}, "--prompt x: the model has no prompts; leave it out"),
    ],
)
def test_what_is_missing_is_said_with_the_option_that_names_it(
    change: dict[str, Any], message: str, tmp_path: Path, embedder: Path, reranker: Path
) -> None:
    (tmp_path / "rows.csv").write_text("text,id\nhello,1\n", encoding="utf-8")
    model = reranker if len(change.get("columns", ())) > 1 else embedder
    asked = replace(Request([str(tmp_path / "rows.csv")], str(tmp_path / "out"), model), **change)
    with pytest.raises(BulkError, match=message):
        run_here(asked)


def test_gpus_are_for_plans(tmp_path: Path, embedder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_lines(tmp_path / "in.txt", ["hello"])
    words = ["embed", str(embedder), "--input", str(tmp_path / "in.txt"), "-o", str(tmp_path / "out"), "--gpus", "3"]
    assert cli.main(words) == 1
    assert "--gpus 3: is for plans" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "out").exists()

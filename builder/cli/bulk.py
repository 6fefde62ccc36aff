# SPDX-License-Identifier: Apache-2.0
"""What `padfree embed` and `padfree rerank` share: options, workers, progress and the table at the end."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from padfree.builder.errors import BuildError
from padfree.builder.gpu_files import check_gpus
from padfree.contract.machine import cores
from padfree.contract.names import ONNX_SUFFIX, is_onnx

from .console import count_text, print_line, print_table
from .option_kinds import file, integer, switch, value_of, word
from .options import add_other_gpu_option, add_revision_option, add_tokenizer_option
from .profiles import PLAN_SUFFIX
from .row_progress import show_progress
from .stages import add_quiet_option, sayer

if TYPE_CHECKING:
    from padfree.bulk import Finished, WorkerSpec

PACKAGES = {"pyarrow": "bulk", "ray": "ray"}
ALL, STDOUT = "all", "-"
MOST_TOKENIZERS = 12
"""Processes that make tokens for one GPU, unless more are asked for: in Python alone one makes 1 to 1.6 million a
second, and MiniLM on an H200 takes 16 (docs/guide/bulk.md)."""


def add_options(parser: argparse.ArgumentParser, kinds: str) -> None:
    """Model, inputs of these `kinds`, output, and how it is run."""
    parser.add_argument(
        "model",
        type=Path,
        nargs="?",
        help="model.plan or packed.onnx; a model's folder or a Hugging Face id runs on the CPU",
    )
    parser.add_argument(
        "--input",
        nargs="+",
        required=True,
        metavar="PATH",
        help=f"{kinds} files, folders of them, or URIs such as s3://bucket/folder",
    )
    parser.add_argument("-o", "--output", required=True, metavar="FOLDER", help="folder of the result, local or a URI")
    file(parser, "--engine", "MODEL", "the model, instead of the first argument")
    switch(parser, "--verify", "at the end, compare the result with the inputs")
    add_quiet_option(parser)
    _add_model_options(parser.add_argument_group("the model"))
    _add_result_options(parser.add_argument_group("rows"))
    _add_worker_options(parser.add_argument_group("workers; none of this changes the result"))


def _add_model_options(group: argparse._ArgumentGroup) -> None:
    add_revision_option(group)
    add_tokenizer_option(group)
    word(group, "--head", "NAME", "the output to keep (default: the one for the model's task)")
    integer(group, "--max-length", "S", "maximum tokens per text or pair; longer ones are truncated")
    integer(group, "--max-tokens", "T", "maximum tokens per batch (default: the engine's)")
    integer(group, "--max-batch", "B", "maximum texts per batch (default: the engine's)")


def _add_result_options(group: argparse._ArgumentGroup) -> None:
    word(group, "--id", "COLUMN", "column of ids (default: rows are numbered)")
    group.add_argument(
        "--dtype",
        choices=("float16", "float32"),
        default="float32",
        help="type of the numbers in the result (default float32)",
    )
    integer(group, "--max-text-bytes", "N", "larger texts get no result and are listed", default=1 << 18)
    integer(
        group, "--shard-rows", "N", "rows per output file (default 65536; 1024 for .onnx; 512 with a row per token)"
    )


def _add_worker_options(group: argparse._ArgumentGroup) -> None:
    word(
        group,
        "--gpus",
        "LIST",
        "for plans: all, or numbers separated by commas; one process per GPU (default: all)",
        default=ALL,
    )
    integer(
        group, "--workers", "N", "for .onnx files: processes (default 1); with --ray: actors (default: one per GPU)"
    )
    integer(
        group,
        "--tokenizers",
        "N",
        f"tokenising processes per worker (default: its share of cores; for a GPU at most {MOST_TOKENIZERS})",
    )
    word(group, "--ray", "ADDRESS", "run on a Ray cluster: its address, or auto")
    add_other_gpu_option(group)


def run_job(arguments: argparse.Namespace, columns: tuple[str | None, ...], prompt: str | None) -> int:
    """Does the work and prints a summary.

    Args:
        arguments: the command's.
        columns: that of the text, or of the two texts of a pair; None: as the inputs spell pairs.
        prompt: the name of a prompt.
    """
    from padfree.builder.folders.packing import runnable
    from padfree.runtime import word_table

    try:
        from padfree.bulk import Request, embed
    except ImportError as error:
        raise _missing_package(error) or error from error
    tell, given_model = sayer(arguments), _model(arguments)
    if arguments.output == STDOUT:
        raise BuildError(f"-o {STDOUT}: the result is a folder of parquet files; name one, such as vectors")
    if arguments.gpus != ALL:
        check_gpus(arguments.gpus, given_model)
    with runnable(given_model, revision=arguments.revision, say=tell) as model:
        request = value_of(
            Request,
            arguments,
            inputs=arguments.input,
            model=model,
            columns=columns,
            id_column=arguments.id,
            prompt=prompt,
            max_sequences=arguments.max_batch,
        )
        workers = _Workers(arguments, model)
        if arguments.ray is None and word_table.find() is None:
            tell(
                f"{word_table.LIBRARY_NAME} is missing, so that tokens of BERT's tokenizers take ten times as long; "
                "install padfree where there is a C++ compiler"
            )
        with show_progress(quiet=arguments.quiet) as on_progress:
            result = embed(
                request,
                workers.running,
                workers.make,
                read_back=arguments.verify,
                on_progress=on_progress,
                say=tell,
            )
    _print(result, arguments.output, "text" if len(columns) == 1 else "pair")
    return int(not result.report.texts)


def _model(arguments: argparse.Namespace) -> Path:
    """What was given as the model.

    Raises:
        BuildError: nothing, two, a file that is not there, or what the machines of a cluster cannot read.
    """
    paths: list[Path] = [each for each in (arguments.model, arguments.engine) if each is not None]
    if len(paths) != 1:
        paths_text = "none" if not paths else " and ".join(map(str, paths))
        raise BuildError(f"give one model, not {paths_text}; name it first: MODEL --input ... -o ...")
    (model,) = paths
    if arguments.ray is not None and not model.is_file():
        raise BuildError(
            f"--ray with {model}: what is rewritten here lies on this machine alone; write a file on a disk that all "
            f"machines have (padfree optimize {model} -o FILE.onnx, or padfree build), and give that"
        )
    if not model.exists() and model.suffix in (ONNX_SUFFIX, PLAN_SUFFIX):
        raise BuildError(
            f"{model}: no such file; make one of a model's folder: padfree build, or padfree optimize for a machine "
            "without a GPU"
        )
    return model


def _missing_package(error: ImportError) -> Exception | None:
    from padfree.contract.installation import install_command

    package = (error.name or "").partition(".")[0]
    if package not in PACKAGES:
        return None
    return BuildError(f"padfree embed and rerank need {package}: {install_command(PACKAGES[package])}")


class _Workers:
    """Who does the work, as the options say."""

    def __init__(self, arguments: argparse.Namespace, model: Path) -> None:
        from padfree.bulk import Running
        from padfree.runtime import read_sidecar

        self._ray, self._count = arguments.ray, arguments.workers
        self._on_gpu = not is_onnx(model)
        if self._count is not None and (self._count < 1 or (self._on_gpu and self._ray is None)):
            raise BuildError(
                f"--workers {self._count}: allowed: 1 or more, for .onnx files and clusters; choose GPUs with --gpus"
            )
        if self._on_gpu:
            read_sidecar(model)  # what is no plan is named before a GPU that is not there
        self._gpus = _gpus(arguments.gpus) if self._on_gpu and self._ray is None else []
        here = len(self._gpus) or self._count or 1
        share = max(1, cores() // here)
        # On a CPU the model gets every core: tokens take a few per cent of its time, most of it before the first batch.
        tokenizers = max(1, min(MOST_TOKENIZERS, share - 2) if self._on_gpu else share // 2)
        if arguments.tokenizers is not None and arguments.tokenizers < 1:
            raise BuildError(f"--tokenizers {arguments.tokenizers}: allowed: 1 or more; leave it out for the default")
        self.running = Running(
            tokenizers=tokenizers if arguments.tokenizers is None else arguments.tokenizers,
            cpu_threads=0 if self._on_gpu else share,
            runs=Running.runs if self._on_gpu else 1,
            allow_other_gpu=arguments.allow_other_gpu,
        )

    def make(self, spec: WorkerSpec) -> Any:
        """Starts them."""
        from padfree.bulk import LocalWorkers, on_cpu, one_a_gpu

        if self._ray is None:
            return LocalWorkers(spec, *(one_a_gpu(self._gpus) if self._on_gpu else on_cpu(self._count or 1)))
        try:
            from padfree.bulk.workers.on_ray import RayWorkers
        except ImportError as error:
            raise _missing_package(error) or error from error
        count = self._count or (0 if self._on_gpu else 1)
        return RayWorkers(self._ray, spec, count, gpus=int(self._on_gpu))


def _gpus(which: str) -> list[str]:
    """GPUs as CUDA_VISIBLE_DEVICES calls them.

    Raises:
        BuildError: there are none, or not those.
    """
    from padfree.runtime.gpu import import_tensorrt

    import_tensorrt()  # named first where both TensorRT and cuda-bindings are missing
    from padfree.runtime.gpu.cuda import device_count

    count, visible = device_count(), os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",")[:count] if visible else [str(number) for number in range(count)]
    if not names:
        raise BuildError(
            "no usable GPU on this machine, and plans need one; pass a packed .onnx file (padfree optimize), or check "
            "with padfree doctor"
        )
    if which == ALL:
        return names
    numbers = which.split(",")
    if not all(one.isdecimal() and int(one) < count for one in numbers) or len(set(numbers)) < len(numbers):
        raise BuildError(f"--gpus {which}: allowed: all, or numbers from 0 to {count - 1} by commas, each once")
    return [names[int(one)] for one in numbers]


def _print(result: Finished, output: str, what: str) -> None:
    """Prints the report of a job on texts or pairs, as `what` says."""
    report = result.report
    rows = [
        (
            worker.name,
            f"{worker.tokens}",
            f"{worker.tokens_a_second:,.0f}",
            "-" if worker.idle is None else f"{100 * worker.idle:.1f} %",
        )
        for worker in report.workers
    ]
    if rows:
        print_table("workers", ("worker", "tokens", "tokens/s", "idle"), rows)
    for kind, count in report.bad.items():
        print_line(f"rows without a result: {count} ({kind})")
    if report.bad:
        print_line(f"their reasons are in {output}/_bad")
    for loss in report.losses:
        print_line(f"started anew: {loss}")
    if report.cut:
        print_line(f"{what}s that were longer than the model takes, and were cut: {report.cut}")
    if not report.texts:
        print_line("no row has a result")
    if report.tokens_saved:
        print_line(f"tokens that {what}s with the same beginning shared: {report.tokens_saved}")
    now = f"{count_text(report.texts_now, what)}, {report.seconds:.1f} s, {report.tokens_a_second:,.0f} tokens/s"
    print_line(
        f"{count_text(report.texts, what)}, {report.tokens} tokens, {count_text(report.shards, 'file')} in {output}; "
        f"this run: {now}",
    )
    if result.verified is not None:
        print_line(
            f"verified: {count_text(result.verified.texts, what)} and {count_text(result.verified.bad, 'bad row')}, "
            "each once",
        )

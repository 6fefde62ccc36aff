# SPDX-License-Identifier: Apache-2.0
"""`padfree doctor`: what works on this machine, and what to do about what does not."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from padfree.builder.errors import BuildError
from padfree.contract.names import is_onnx

from .console import print_line, print_table
from .option_kinds import file, integer, names_of, switch
from .profiles import PLAN_SUFFIX

REQUIRABLE = ("python", "gpu", "driver", "tensorrt", "library", "registration", "tokens", "compiler", "nvcc", "headers")


HELP = "check this machine"
DESCRIPTION = (
    "Checks GPU, driver, TensorRT, plugin library and build tools. A missing part is not a failure, "
    "because rewriting and the CPU need none of them. The command fails if an installed part does not work, or if "
    "a part that --require names is missing."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the subcommand's arguments."""
    parser.add_argument(
        "--require",
        type=names_of(REQUIRABLE, "part"),
        default=(),
        metavar="LIST",
        help=f"fail unless these work, separated by commas: {', '.join(REQUIRABLE)}",
    )
    switch(parser, "--json", "print the findings, or those of --check, as JSON")
    switch(
        parser, "--check", "instead, run every operator in every type on the GPU beside a reference, in about a minute"
    )
    file(
        parser,
        "--plan",
        "FILE",
        "instead, run the batches that `build` kept with a plan, and compare its answers with those kept",
    )
    integer(parser, "--device", "N", "CUDA device for --check and --plan", default=0)


def _check_plan_is_named(plan: Path) -> None:
    """Raises BuildError for a file of another kind; folders and damaged plans are told when they are opened."""
    from padfree.contract.file_kinds import other_kind
    from padfree.runtime import sidecar_path

    if is_onnx(plan):
        raise BuildError(
            f"--plan {plan}: is an .onnx file, whose answers were compared when it was written; name a plan, "
            "or compare the file with its original: padfree compare"
        )
    if not plan.is_file() or sidecar_path(plan).exists() or plan.suffix == PLAN_SUFFIX:
        return
    kind = other_kind(plan)
    what = kind.what if kind else f"has no {sidecar_path(plan).name} beside it, as plans have"
    raise BuildError(f"--plan {plan}: {what}; name a plan, which padfree build has written: model.plan")


def _check(arguments: argparse.Namespace) -> int:
    """--check or --plan."""
    from .engine_check import check_plan
    from .operator_check import check_operators

    if arguments.plan is not None:
        _check_plan_is_named(arguments.plan)
    if arguments.check and arguments.plan is not None:
        raise BuildError("--check looks at operators, --plan at one engine; pass one of them")
    if arguments.require:
        raise BuildError("--require is for what doctor finds without --check and --plan; leave it out")
    return check_operators(arguments) if arguments.check else check_plan(arguments.plan, arguments.device)


def run(arguments: argparse.Namespace) -> int:
    """Runs the subcommand; 0 unless something present is broken or something required does not work."""
    from padfree.builder.doctor import ENGINES, capabilities, diagnose

    if arguments.check or arguments.plan is not None:
        return _check(arguments)
    findings = diagnose()
    failures = [f for f in findings if f.state == "problem" or (f.state == "missing" and f.name in arguments.require)]
    uses = capabilities(findings)
    if arguments.json:
        print_line(json.dumps({"findings": [asdict(f) for f in findings], "works": uses}, indent=2))
        return 1 if failures else 0
    rows = [(f.name, f.state, f.detail) for f in findings]
    print_table("this machine", ("part", "state", "detail"), rows)
    print_table("what works here", ("use", "works"), [(k, "yes" if v else "no") for k, v in uses.items()])
    for finding in findings:
        if finding.state != "ok" and finding.next_step:
            print_line(f"{finding.name}: {finding.next_step}")
    if uses[ENGINES]:
        print_line("whether every operator is right on this GPU: padfree doctor --check")
    return 1 if failures else 0

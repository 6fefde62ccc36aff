# SPDX-License-Identifier: Apache-2.0
"""Options of a build as one value: keywords, the command's options, and the way to the process that rewrites."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
from padfree.builder import BuildError, BuildOptions, build_engine
from padfree.builder.cli import make_parser
from padfree.builder.cli.build import _options_of
from padfree.builder.cli.profiles import engines_of
from padfree.builder.engine.engine_builder import TacticOptions
from padfree.builder.engine.profile import ProfileOptions
from padfree.onnx_tools import RewriteOptions

NOT_OPTIONS = {"model", "plan_path", "options", "progress", "builder", "origin", "say"}
ALL: dict[str, Any] = {
    "interface": "padded",
    "precision": "bf16",
    "strict": True,
    "verify": "whole",
    "mask": "attention_mask",
    "masks": "contiguous",
    "padding_id": 1,
    "shared_prefixes": True,
    "max_batch": 4,
    "max_seq_len": 32,
    "max_tokens": 96,
    "opt_tokens": 50,
    "timing_cache": Path("cache"),
    "workspace_bytes": 1 << 20,
    "optimization_level": 2,
    "linear": "padfree",
    "norms": "separate",
    "measure": True,
    "device": 1,
}


def test_keywords_are_those_of_build_engine() -> None:
    parameters = inspect.signature(build_engine).parameters
    assert BuildOptions.keywords() == set(parameters) - NOT_OPTIONS == set(ALL)
    defaults = {name: parameters[name].default for name in ALL}
    assert BuildOptions.of_keywords(**defaults) == BuildOptions()


def test_every_keyword_has_its_field() -> None:
    options = BuildOptions.of_keywords(**ALL)
    assert options.profile == ProfileOptions(4, 32, 96, 50)
    assert options.tactics == TacticOptions(1 << 20, 2, Path("cache"))
    assert (options.linear, options.norms, options.device) == ("padfree", "separate", 1)
    rewriting = ("interface", "precision", "strict", "verify", "mask", "masks", "padding_id", "shared_prefixes")
    assert options.rewriting == RewriteOptions.of_keywords(**{name: ALL[name] for name in rewriting})
    of_file = BuildOptions.of_keywords(
        **{name: ALL[name] for name in {"verify", *ALL} - {*rewriting[:3], *rewriting[4:]}}
    )
    assert options.of_rewritten() == of_file
    with pytest.raises(TypeError, match="max_length"):
        BuildOptions.of_keywords(max_length=4)


def test_what_is_left_open_is_chosen_where_a_model_is_rewritten() -> None:
    assert BuildOptions().rewriting == RewriteOptions("packed", "half", mask_form="any")


def test_a_value_and_keywords_exclude_each_other(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="options are given as a value and as keywords; give one of the two"):
        build_engine(tmp_path / "model.onnx", tmp_path / "model.plan", BuildOptions(), max_batch=2)


def test_the_command_says_the_same() -> None:
    words = "build model.onnx -o model.plan --interface padded --precision bf16 --strict --verify whole"
    words += " --mask attention_mask --masks contiguous --padding-id 1 --max-batch 4 --max-seq-len 32 --max-tokens 96"
    words += " --opt-tokens 50 --timing-cache cache --workspace-mib 1 --optimization-level 2 --linear padfree"
    words += " --norms separate --measure --shared-prefixes --device 1"
    (engine,) = engines_of(make_parser().parse_args(words.split()))
    assert _options_of(engine) == BuildOptions.of_keywords(**ALL)

# SPDX-License-Identifier: Apache-2.0
"""Whose GEMMs an engine uses: what the option means, by GPU and model."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import onnx
import pytest
from padfree.builder import BuildError
from padfree.builder.cli import main
from padfree.builder.cli.options import LINEAR, NORMS
from padfree.builder.demo.demo import DEMO_DATA
from padfree.builder.engine.linear import CHOICES, apply_linear, choose_linear, norms_heads, norms_of
from padfree.builder.engine.linear import NORMS as KNOWN_NORMS
from padfree.onnx_tools.files.model import Model
from padfree.runtime.gpu import device_code, plugin_library
from padfree.runtime.gpu.device import Device

Capture = pytest.CaptureFixture[str]
HOPPER, ADA = Device(0, "NVIDIA H200", 9, 0), Device(0, "NVIDIA L4", 8, 9)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, onnx.ModelProto]:
    """The same model, as `padfree optimize --linear` writes it for each value of the option."""
    folder = tmp_path_factory.mktemp("linear")
    command = ["optimize", str(DEMO_DATA / "bert_tiny.onnx"), "--precision", "fp16", "--no-verify"]
    for value in LINEAR[1:]:
        assert main([*command, "-o", str(folder / f"{value}.onnx"), "--linear", value]) == 0
    return {value: onnx.load(str(folder / f"{value}.onnx")) for value in LINEAR[1:]}


def plugins(model: onnx.ModelProto) -> Counter[str]:
    return Counter(node.op_type for node in model.graph.node if node.domain == "padfree")


def test_the_command_offers_what_the_builder_knows() -> None:
    assert LINEAR == CHOICES
    assert NORMS == KNOWN_NORMS


def test_optimize_writes_gemms_that_run_anywhere_unless_asked(models: dict[str, onnx.ModelProto]) -> None:
    plain, fused = plugins(models["tensorrt"]), plugins(models["padfree"])
    assert fused - plain == Counter(PadfreeLinear=4 * plain["PadfreeAttention"])
    assert plugins(apply_linear("padfree", Model(models["tensorrt"]), norms="folded").proto) == fused
    for name, message in models.items():
        model = Model(message)
        assert apply_linear(name, model, norms="folded") is model


def test_norms_are_folded_or_not(models: dict[str, onnx.ModelProto]) -> None:
    plain = models["tensorrt"]
    separate = apply_linear("padfree", Model(plain), norms="separate").proto
    layers = plugins(plain)["PadfreeAttention"]
    norms = {name: plugins(model)["PadfreeLayerNorm"] for name, model in {**models, "separate": separate}.items()}
    # The last norm is not read by a product.
    assert norms == {"tensorrt": 2 * layers, "separate": 2 * layers, "padfree": 1}
    assert [norms_of(model) for model in (plain, separate, models["padfree"])] == ["separate", "separate", "folded"]


def test_norms_that_are_not_to_be_had(models: dict[str, onnx.ModelProto]) -> None:
    with pytest.raises(BuildError, match="with norms folded and --norms separate was asked for; rewrite the original"):
        apply_linear("padfree", Model(models["padfree"]), norms="separate")
    with pytest.raises(BuildError, match="norms is 'fused', allowed are folded, separate; choose one of them"):
        apply_linear("padfree", Model(models["tensorrt"]), norms="fused")


def test_inspect_shows_the_gemms(models: dict[str, onnx.ModelProto], tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "fused.onnx"
    onnx.save_model(models["padfree"], str(path))
    assert main(["inspect", str(path), "--verbose"]) == 0
    output = capsys.readouterr().out
    assert "PadfreeLinear" in output
    assert "linear" in output
    assert "complete: nothing computes padding" in output


@pytest.mark.parametrize(
    ("wanted", "precision", "device", "choice"),
    [
        ("auto", "fp16", HOPPER, "padfree"),
        ("auto", "bf16", HOPPER, "padfree"),
        ("auto", "fp32", HOPPER, "tensorrt"),
        ("auto", "fp16", ADA, "tensorrt"),
        ("padfree", "fp16", HOPPER, "padfree"),
        ("padfree", "fp16", ADA, "padfree"),
        ("tensorrt", "fp16", HOPPER, "tensorrt"),
    ],
)
def test_the_choice(
    models: dict[str, onnx.ModelProto], wanted: str, precision: str, device: Device, choice: str
) -> None:
    assert choose_linear(wanted, models["tensorrt"], precision, device) == choice


@pytest.mark.parametrize(
    ("wanted", "model", "precision", "device", "message"),
    [
        ("padfree", "tensorrt", "fp32", HOPPER, "computes in fp16 or bf16, the model is fp32; pass --linear tensorrt"),
        ("auto", "padfree", "fp32", ADA, "rewritten with PadfreeLinear and PadfreeLinear computes in fp16 or bf16"),
        ("tensorrt", "padfree", "fp16", HOPPER, "and --linear tensorrt was asked for; rewrite the original"),
        ("cutlass", "tensorrt", "fp16", HOPPER, "linear is 'cutlass', allowed are auto, padfree, tensorrt"),
    ],
)
def test_what_is_not_to_be_had(
    models: dict[str, onnx.ModelProto], wanted: str, model: str, precision: str, device: Device, message: str
) -> None:
    with pytest.raises(BuildError, match=message):
        choose_linear(wanted, models[model], precision, device)


def test_a_model_with_the_operator_is_taken_as_it_is(models: dict[str, onnx.ModelProto]) -> None:
    for device in (HOPPER, ADA):
        assert choose_linear("auto", models["padfree"], "fp16", device) == "padfree"


@pytest.mark.parametrize(("compiled", "expected"), [(("80", "90a"), True), (None, True), (("80", "90a", "ptx"), False)])
def test_hoppers_own_kernels_norm_heads(
    compiled: tuple[str, ...] | None, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugin_library, "find", lambda: Path("libpadfree.so"))
    monkeypatch.setattr(device_code, "architectures", lambda _: compiled)
    assert (norms_heads(HOPPER), norms_heads(ADA)) == (expected, False)

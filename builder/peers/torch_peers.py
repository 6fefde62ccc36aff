# SPDX-License-Identifier: Apache-2.0
"""PyTorch's contenders: a transformers model padded, compiled, and the time of the GEMMs alone."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from padfree.contract.names import FP8
from padfree.onnx_tools.cost import size
from padfree.runtime import bounds_of

from .contender import Answers, Contender, UnavailableError, Way
from .e4m3_gemms import MULTIPLE as E4M3_MULTIPLE
from .setup import Setup


def torch_module() -> Any:
    """PyTorch on a GPU. Raises UnavailableError where there is none."""
    try:
        import torch
    except (ImportError, OSError) as error:
        raise UnavailableError(f"PyTorch cannot be imported ({error}); install torch") from error
    if not torch.cuda.is_available():
        raise UnavailableError(f"this PyTorch ({torch.__version__}) finds no GPU")
    return torch


def load(setup: Setup, precision: str | None = None) -> Any:
    """The transformers model on the GPU, in eval mode, in the precision (None: the measurement's)."""
    torch = torch_module()
    if setup.model.torch_folder is None:
        raise UnavailableError("needs the PyTorch model; pass --torch FOLDER, as save_pretrained writes it")
    try:
        from transformers import AutoConfig, AutoModel, AutoModelForTextEncoding
    except ImportError as error:
        raise UnavailableError(f"transformers cannot be imported ({error}); install transformers") from error
    types = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
    torch.cuda.set_device(setup.device)
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        config = AutoConfig.from_pretrained(setup.model.torch_folder)
    except ValueError as error:  # a type of model that it does not know
        raise UnavailableError(f"transformers cannot read the folder ({str(error).splitlines()[0]})") from error
    encoder_alone = any(name.endswith("EncoderModel") for name in config.architectures or ())  # such as T5's
    loader = AutoModelForTextEncoding if encoder_alone else AutoModel
    dtype = types[precision or setup.model.half]  # which leaves rotary frequencies fp32, where .to rounds them
    return loader.from_pretrained(setup.model.torch_folder, dtype=dtype).to("cuda").eval()


def inputs(setup: Setup) -> dict[str, Any]:
    """The padded batch on the GPU, under the names of the original's inputs."""
    torch = torch_module()
    grids = setup.batch.pad(setup.model.original_metadata)
    return {name: torch.from_numpy(grid).long().cuda() for name, grid in grids.items()}


def answers_of(setup: Setup, result: Mapping[str, Any], *, packed: bool = False) -> Answers:
    """The outputs that a model shares with the original, by name; `packed`: rows of tokens have no padding.

    Raises:
        UnavailableError: it has none of them.
    """
    answers: dict[str, list[Any]] = {}
    seq_lens = setup.batch.seq_lens
    for item in setup.model.original_metadata.outputs:
        if item.name in result:
            rows = result[item.name].float().cpu().numpy()
            if item.layout == "padded":
                rows = (
                    np.split(rows, bounds_of(seq_lens)[1:-1])
                    if packed
                    else [row[:n] for row, n in zip(rows, seq_lens, strict=True)]
                )
            answers[item.name] = list(rows)
    if not answers:
        outputs = ", ".join(item.name for item in setup.model.original_metadata.outputs)
        raise UnavailableError(
            f"PyTorch's model gives {', '.join(result)}, and not {outputs}; leave out --pooling to measure the model's "
            "own outputs"
        )
    return answers


def truth(setup: Setup) -> Answers:
    """The padded answers in fp32."""
    torch = torch_module()
    with torch.inference_mode():
        return answers_of(setup, load(setup, "fp32")(**inputs(setup)))


def eager(setup: Setup) -> Contender:
    """The padded model as it is, without a compiler or a CUDA graph."""
    run = padded_run(setup, load(setup))
    return Contender(answers_of(setup, run()), ways_of(run, graph=False))


def compiled_model(setup: Setup) -> Contender:
    """The padded model through torch.compile, for the batch's shape."""
    torch = torch_module()
    run = padded_run(setup, torch.compile(load(setup), dynamic=False))
    return Contender(answers_of(setup, run()), ways_of(run))


def forget_compiled() -> None:
    """Drops what torch.compile made: it stops compiling a function after eight shapes."""
    with contextlib.suppress(UnavailableError):
        torch_module().compiler.reset()


def padded_run(setup: Setup, model: Any) -> Callable[[], Any]:
    """A function that runs a model on the padded batch."""
    torch, feeds = torch_module(), inputs(setup)

    def run() -> Any:
        with torch.inference_mode():
            return model(**feeds)

    return run


def ways_of(run: Callable[[], object], *, graph: bool = True) -> dict[str, Way]:
    """Plain and, where it can be captured, in a CUDA graph."""
    from .timing import capture, each_ms  # imports PyTorch

    torch = torch_module()
    ways: dict[str, Way] = {"plain": partial(each_ms, run)}
    if not graph:
        return ways
    try:
        ways["CUDA graph"] = partial(each_ms, capture(run))
    except RuntimeError:  # a model whose forward synchronises cannot be captured
        torch.cuda.synchronize()
    return ways


def gemm_limit(setup: Setup) -> Contender:
    """The packed GEMMs with weights alone, by cuBLAS through PyTorch, in one CUDA graph.

    Every layer has a weight of its own, so that none is in the cache when its turn comes. In fp8 the GEMMs whose K
    and N allow it are in e4m3, with scales of one number per tensor, which is the fastest that cuBLASLt has.
    """
    torch = torch_module()
    types = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
    options = {"device": "cuda", "dtype": types[setup.model.half]}
    layers: list[list[Callable[[], object]]] = []
    for item in setup.model.gemms:
        if item.weights:
            rows, inner = (round(size(text, setup.lengths, False)) for text in (item.rows, item.inner))
            columns, count = int(item.columns), item.count * int(item.batch)
            narrow = setup.model.precision == FP8 and inner % E4M3_MULTIPLE == columns % E4M3_MULTIPLE == 0
            x, results = torch.randn(rows, inner, **options), torch.empty(rows, columns, **options)
            weights = [torch.randn(inner, columns, **options) for _ in range(count)]
            layers.append(_e4m3_gemms(torch, x, weights) if narrow else _gemms(torch, x, weights, results))
    if not layers:
        raise UnavailableError("the model has no GEMMs with weights")

    def run() -> None:
        for gemms in itertools.zip_longest(*layers):
            for gemm in gemms:
                if gemm is not None:
                    gemm()

    return Contender({}, {"CUDA graph": ways_of(run)["CUDA graph"]})


def _gemms(torch: Any, x: Any, weights: list[Any], results: Any) -> list[Callable[[], object]]:
    """x [M,K] by every weight [K,N]."""
    return [partial(torch.mm, x, weight, out=results) for weight in weights]


def _e4m3_gemms(torch: Any, x: Any, weights: list[Any]) -> list[Callable[[], object]]:
    """The GEMMs in e4m3, with results in the type of x; x and the weights are rounded beforehand."""
    e4m3, one = torch.float8_e4m3fn, torch.ones((), device=x.device, dtype=torch.float32)
    rows = [weight.t().contiguous().to(e4m3).t() for weight in weights]  # cuBLASLt wants [K,N] by columns
    multiply = partial(torch._scaled_mm, scale_a=one, scale_b=one, out_dtype=x.dtype, use_fast_accum=True)
    return [partial(multiply, x.to(e4m3), weight) for weight in rows]

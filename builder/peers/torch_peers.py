# SPDX-License-Identifier: Apache-2.0
"""PyTorch's contenders: a transformers model padded, compiled, and the time of the matrix products alone."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from padfree.onnx_tools.cost import size

from .contender import Answers, Contender, UnavailableError, Way
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
    config = AutoConfig.from_pretrained(setup.model.torch_folder)
    encoder_alone = any(name.endswith("EncoderModel") for name in config.architectures or ())  # such as T5's
    loader = AutoModelForTextEncoding if encoder_alone else AutoModel
    dtype = types[precision or setup.model.half]  # which leaves rotary frequencies fp32, where .to rounds them
    return loader.from_pretrained(setup.model.torch_folder, dtype=dtype).to("cuda").eval()


def inputs(setup: Setup) -> dict[str, Any]:
    """The padded batch on the GPU, under the names of the original's inputs."""
    torch = torch_module()
    grids = setup.batch.padded(setup.model.original_metadata)
    return {name: torch.from_numpy(grid).long().cuda() for name, grid in grids.items()}


def answers_of(setup: Setup, result: Mapping[str, Any]) -> Answers:
    """Of a model's outputs those that the original has too, by name."""
    found = {}
    for item in setup.model.original_metadata.outputs:
        if item.name in result:
            rows = result[item.name].float().cpu().numpy()
            padded = item.layout == "padded"
            found[item.name] = [row[:n] if padded else row for row, n in zip(rows, setup.batch.seq_lens, strict=True)]
    return found


def truth(setup: Setup) -> Answers:
    """The padded answers in fp32."""
    torch = torch_module()
    with torch.inference_mode():
        return answers_of(setup, load(setup, "fp32")(**inputs(setup)))


def eager(setup: Setup) -> Contender:
    """The padded model as it is, which is how it is without a compiler: no CUDA graph."""
    run = padded_run(setup, load(setup))
    return Contender(answers_of(setup, run()), ways_of(run, graph=False))


def compiled(setup: Setup) -> Contender:
    """The padded model through torch.compile, for the batch's shape."""
    torch = torch_module()
    run = padded_run(setup, torch.compile(load(setup), dynamic=False))
    return Contender(answers_of(setup, run()), ways_of(run))


def forget_compiled() -> None:
    """Drops what torch.compile made: it stops compiling a function after eight shapes."""
    with contextlib.suppress(UnavailableError):
        torch_module().compiler.reset()


def padded_run(setup: Setup, model: Any) -> Callable[[], Any]:
    """What runs a model on the padded batch."""
    torch, feeds = torch_module(), inputs(setup)

    def run() -> Any:
        with torch.inference_mode():
            return model(**feeds)

    return run


def ways_of(run: Callable[[], object], *, graph: bool = True) -> dict[str, Way]:
    """Plain and, where it can be captured, in a CUDA graph."""
    from .timing import captured, each_ms  # imports PyTorch

    torch = torch_module()
    ways: dict[str, Way] = {"plain": partial(each_ms, run)}
    if not graph:
        return ways
    try:
        ways["CUDA graph"] = partial(each_ms, captured(run))
    except RuntimeError:  # a model whose forward synchronises cannot be captured
        torch.cuda.synchronize()
    return ways


def gemm_limit(setup: Setup) -> Contender:
    """The packed matrix products with weights alone, by cuBLAS through PyTorch, in one CUDA graph.

    Every layer has a weight of its own, so that none is in the cache when its turn comes.
    """
    torch = torch_module()
    types = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
    options = {"device": "cuda", "dtype": types[setup.model.half]}
    kinds = []
    for item in setup.model.products:
        if item.weights:
            rows, inner = (round(size(text, setup.lengths, False)) for text in (item.rows, item.inner))
            weights = [torch.randn(inner, int(item.columns), **options) for _ in range(item.count * int(item.batch))]
            results = torch.empty(rows, int(item.columns), **options)
            kinds.append((torch.randn(rows, inner, **options), weights, results))
    if not kinds:
        raise UnavailableError("the model has no matrix products with weights")

    def run() -> None:
        for layer in range(max(len(weights) for _, weights, _ in kinds)):
            for x, weights, y in kinds:
                if layer < len(weights):
                    torch.mm(x, weights[layer], out=y)

    return Contender({}, {"CUDA graph": ways_of(run)["CUDA graph"]})

# SPDX-License-Identifier: Apache-2.0
"""BERT by NVIDIA's variable-length plugins for TensorRT 10, from which some users come.

The plugins (embedding with layer norm, attention, skip with layer norm) are those of libnvinfer_plugin; the network
between them is the one that their documentation describes: packed tokens as [T, E, 1, 1], linear layers as 1 x 1
convolutions, GELU by TensorRT. Version numbers of the plugins: attention "2", the two norms "2".
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from padfree.runtime import SessionError, bounds_of
from padfree.runtime.gpu import import_tensorrt

from .contender import Contender, UnavailableError
from .setup import Setup
from .tensorrt_network import FixedNetwork
from .torch_peers import load, torch_module, ways_of

HALF = 1  # as the plugins' field type_id has it
HEAD_SIZE = 64
MAX_LENGTH = 384
"""The next larger kernel, for 512, gives wrong numbers on Hopper."""


def varseqlen(setup: Setup) -> Contender:
    """The engine, plain and in a CUDA graph."""
    try:
        trt = import_tensorrt()
    except SessionError as error:
        raise UnavailableError(str(error)) from error
    torch, seq_lens = torch_module(), setup.batch.seq_lens
    model = load(setup, "fp32")
    config = model.config
    if type(model).__name__ != "BertModel" or config.hidden_size != HEAD_SIZE * config.num_attention_heads:
        raise UnavailableError(f"the plugins take BertModel with heads of {HEAD_SIZE}; this is {type(model).__name__}")
    if setup.batch.seq_len > MAX_LENGTH or setup.model.half != "fp16":
        raise UnavailableError(f"the plugins give right answers in fp16 up to {MAX_LENGTH} tokens a sequence")
    if not hasattr(trt.INetworkDefinition, "add_plugin_v2"):
        raise UnavailableError(f"TensorRT {trt.__version__} no longer has these plugins")
    start = time.monotonic()
    network = FixedNetwork(trt)
    inputs = {
        "input_ids": setup.batch.ragged.tokens["input_ids"],
        "segment_ids": setup.batch.ragged.tokens.get("token_type_ids", np.zeros(setup.batch.tokens, np.int32)),
        "cu_seqlens": bounds_of(seq_lens).astype(np.int32),
        "max_seqlen": np.zeros(setup.batch.seq_len, np.int32),
    }
    tensors = {name: network.input(name, array.shape, trt.int32) for name, array in inputs.items()}
    try:
        engine = network.build(_bert(network, tensors, model), trt.float16)
    except RuntimeError as error:
        raise UnavailableError(str(error)) from error
    build_s = round(time.monotonic() - start, 1)
    output = torch.empty(setup.batch.tokens, config.hidden_size, dtype=torch.float16, device="cuda")
    addresses = {name: torch.from_numpy(array).cuda() for name, array in inputs.items()} | {"y": output}

    def run() -> None:
        engine.run(addresses)

    run()
    torch.cuda.synchronize()
    rows = np.split(output.float().cpu().numpy(), bounds_of(seq_lens)[1:-1])
    return Contender({"last_hidden_state": rows}, ways_of(run), build_s=build_s)


def _bert(network: FixedNetwork, inputs: Mapping[str, Any], model: Any) -> Any:
    """The whole encoder; returns the last hidden state [T, E, 1, 1]."""
    config, tables = model.config, model.embeddings
    width, heads = config.hidden_size, config.num_attention_heads
    floats = {
        "bert_embeddings_layernorm_beta": tables.LayerNorm.bias,
        "bert_embeddings_layernorm_gamma": tables.LayerNorm.weight,
        "bert_embeddings_word_embeddings": tables.word_embeddings.weight,
        "bert_embeddings_token_type_embeddings": tables.token_type_embeddings.weight,
        "bert_embeddings_position_embeddings": tables.position_embeddings.weight,
    }
    embedding = network.plugin(
        "CustomEmbLayerNormPluginDynamic", "2", {name: _array(value) for name, value in floats.items()},
        {"output_fp16": 1}, [inputs[name] for name in ("input_ids", "segment_ids", "cu_seqlens", "max_seqlen")],
    )  # fmt: skip
    x, mask = embedding.get_output(0), embedding.get_output(1)
    for layer in model.encoder.layer:
        three = [getattr(layer.attention.self, name) for name in ("query", "key", "value")]
        # The attention plugin reads [T, H, 3, D].
        weight = np.stack([_array(item.weight).reshape(heads, HEAD_SIZE, width) for item in three], axis=1)
        bias = np.stack([_array(item.bias).reshape(heads, HEAD_SIZE) for item in three], axis=1)
        qkv = network.linear(x, weight.reshape(3 * width, width), bias.reshape(3 * width))
        attention = network.plugin(
            "CustomQKVToContextPluginDynamic", "2", {},
            {"type_id": HALF, "hidden_size": width, "num_heads": heads, "has_mask": 1, "var_seqlen": 1},
            [qkv, mask, inputs["cu_seqlens"], inputs["max_seqlen"]],
        ).get_output(0)  # fmt: skip
        output = layer.attention.output
        x = _skip_norm(network, network.linear(attention, *_weights(output.dense)), x, output.LayerNorm)
        inner = network.gelu(network.linear(x, *_weights(layer.intermediate.dense)))
        x = _skip_norm(network, network.linear(inner, *_weights(layer.output.dense)), x, layer.output.LayerNorm)
    return x


def _skip_norm(network: FixedNetwork, x: Any, skip: Any, norm: Any) -> Any:
    arrays = {"beta": _array(norm.bias), "gamma": _array(norm.weight)}
    return network.plugin("CustomSkipLayerNormPluginDynamic", "2", arrays, {"type_id": HALF}, [x, skip]).get_output(0)


def _array(tensor: Any) -> Any:
    return tensor.detach().float().cpu().numpy()


def _weights(linear: Any) -> tuple[Any, Any]:
    return _array(linear.weight), _array(linear.bias)

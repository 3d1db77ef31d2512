"""Quantise an ONNX encoder to 8-bit weights: a quarter of the size, with integer matrix products on a CPU."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from sjepa.errors import UserError
from sjepa.export.graphs import CHECKED, ONNX_FILE, silence_warnings
from sjepa.progress import say
from sjepa.runs.encoder import Encoder


def write_int8(encoder: Encoder, folder: Path) -> float:
    """Replace encoder.onnx in a folder by its 8-bit version. Returns the relative error of the last hidden state.

    Matrix products are quantised dynamically: their weights once, their inputs at each call. Convolutions store 8-bit
    weights but compute in fp32, because integer convolutions are slower on most CPUs.
    """
    try:
        import onnx
        import onnxruntime
        from onnxruntime.quantization import QuantType, quantize_dynamic
    except ImportError as error:
        raise UserError("--int8 needs onnx and onnxruntime: pip install 'sjepa[onnx]'") from error
    say("Quantising the weights to 8 bits ...", aside=True)
    path = folder / ONNX_FILE
    with silence_warnings():
        fold_constants(path)
        quantize_dynamic(
            path, path, op_types_to_quantize=["MatMul", "Gemm"], per_channel=True, weight_type=QuantType.QInt8
        )
    model = onnx.load(path)
    store_convolutions(model.graph)
    onnx.save(model, path)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return relative_error(encoder, session)


def fold_constants(path: Path) -> None:
    """Compute the parts of the graph that do not depend on the input, such as weight normalisation."""
    import onnxruntime

    folded = path.with_suffix(".folded.onnx")
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(folded)
    onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    folded.replace(path)


def store_convolutions(graph: Any) -> None:
    """Replace each convolution's weight by 8-bit integers and a scale per output channel."""
    from onnx import helper, numpy_helper

    weights = {tensor.name: tensor for tensor in graph.initializer}
    added = []
    for name in dict.fromkeys(node.input[1] for node in graph.node if node.op_type == "Conv"):
        if name not in weights:
            continue
        weight = numpy_helper.to_array(weights[name])
        scale = np.maximum(np.abs(weight).reshape(len(weight), -1).max(1) / 127, 1e-12).astype(np.float32)
        shape = (-1,) + (1,) * (weight.ndim - 1)
        integers = np.rint(weight / scale.reshape(shape)).clip(-127, 127).astype(np.int8)
        graph.initializer.remove(weights[name])
        graph.initializer.extend(
            [numpy_helper.from_array(integers, f"{name}_int8"), numpy_helper.from_array(scale, f"{name}_scale")]
        )
        added.append(helper.make_node("DequantizeLinear", [f"{name}_int8", f"{name}_scale"], [name], axis=0))
    nodes = [*added, *graph.node]
    del graph.node[:]
    graph.node.extend(nodes)


@torch.no_grad()
def relative_error(encoder: Encoder, session: Any) -> float:
    """Root mean square error of the last hidden state relative to the state itself, on noise."""
    generator = torch.Generator().manual_seed(0)
    error = size = 0.0
    for batch, samples in CHECKED:
        waveforms = 0.1 * torch.randn(batch, samples, generator=generator)
        ours, theirs = (
            encoder(waveforms).last,
            torch.from_numpy(session.run(None, {"waveforms": waveforms.numpy()})[-1]),
        )
        error += float((ours - theirs).square().sum())
        size += float(ours.square().sum())
    return (error / size) ** 0.5

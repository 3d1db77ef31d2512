"""Write the encoder's graph for ONNX or torch.export, with free batch size and length, and check its outputs."""

import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from sjepa.audio.frames import RECEPTIVE_FIELD, STRIDE
from sjepa.errors import UserError
from sjepa.export.plain import PlainEncoder
from sjepa.progress import say
from sjepa.runs.encoder import Encoder

ONNX_FILE, TORCH_FILE = "encoder.onnx", "encoder.pt2"
SHORTEST = RECEPTIVE_FIELD + STRIDE  # samples: tracing treats a length of one frame as a constant
TOLERANCE = 1e-4
# Numbers of utterances and samples to compare. Graphs are traced with (2, 16,000); the others test that both are free.
CHECKED = ((1, SHORTEST), (2, 16_000), (3, 16_123), (1, 52_345))

HiddenStates = Callable[[Tensor], Sequence[Tensor]]


def write_onnx(encoder: Encoder, folder: Path) -> float:
    """Write encoder.onnx and compare it in onnxruntime. Returns the largest difference."""
    try:
        import onnx  # noqa: F401
        import onnxruntime
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise UserError("--to onnx needs onnx, onnxscript and onnxruntime: pip install 'sjepa[onnx]'") from error
    names = [f"hidden_state_{index}" for index in range(encoder.config.layers + 1)]
    say("Tracing the encoder for ONNX ...", aside=True)
    with silence_warnings():
        program = torch.onnx.export(
            PlainEncoder(encoder),
            (example_input(),),
            dynamo=True,
            dynamic_shapes=dynamic_shapes(),
            input_names=["waveforms"],
            output_names=names,
            external_data=False,
            verbose=False,
        )
    assert program is not None
    say("Writing the graph, and comparing its outputs in onnxruntime ...", aside=True)
    program.save(folder / ONNX_FILE)
    session = onnxruntime.InferenceSession(str(folder / ONNX_FILE), providers=["CPUExecutionProvider"])

    def run(waveforms: Tensor) -> list[Tensor]:
        return [torch.from_numpy(state) for state in session.run(None, {"waveforms": waveforms.numpy()})]

    return check_outputs(encoder, run)


def write_torch(encoder: Encoder, folder: Path) -> float:
    """Write encoder.pt2, load it again and compare it. Returns the largest difference."""
    say("Tracing the encoder, writing its graph and comparing the outputs ...", aside=True)
    with silence_warnings():
        program = torch.export.export(PlainEncoder(encoder), (example_input(),), dynamic_shapes=dynamic_shapes())
        torch.export.save(program, folder / TORCH_FILE)
        return check_outputs(encoder, torch.export.load(folder / TORCH_FILE).module())


def example_input() -> Tensor:
    return torch.zeros(2, 16_000)


def dynamic_shapes() -> tuple[dict[int, torch.export.Dim]]:
    return ({0: torch.export.Dim("batch", min=1), 1: torch.export.Dim("samples", min=SHORTEST)},)


@torch.no_grad()
def check_outputs(encoder: Encoder, exported: HiddenStates) -> float:
    """Return the largest difference from the encoder's hidden states, or refuse it if it exceeds the tolerance."""
    generator = torch.Generator().manual_seed(0)
    largest = 0.0
    for batch, samples in CHECKED:
        waveforms = 0.1 * torch.randn(batch, samples, generator=generator)
        for ours, theirs in zip(encoder(waveforms).hidden_states, exported(waveforms), strict=True):
            largest = max(largest, float((ours - theirs).abs().max()))
    if not largest <= TOLERANCE:
        raise UserError(f"the exported network differs from the encoder by {largest:.1e}, more than {TOLERANCE}")
    return largest


@contextmanager
def silence_warnings() -> Iterator[None]:
    """Silence the exporters' remarks about optional packages."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)

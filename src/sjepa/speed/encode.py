"""`sjepa bench encode`: compare inference with Hugging Face's HubertModel on the same weights."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import Tensor

from sjepa.audio.io import SAMPLE_RATE
from sjepa.bounds import LENGTH, PROCESSES, SIZE, SIZE_OR_DEFAULT
from sjepa.errors import UserError
from sjepa.model.encoder import EncoderNetwork
from sjepa.model.formats import to_hugging_face
from sjepa.settings_file import load_preset
from sjepa.speed.contest import summarize, time_alternately
from sjepa.speed.output import announce, describe_machine, print_table, save
from sjepa.subcommands import parse


@dataclass(frozen=True)
class BenchEncode:
    """Time the encoder and Hugging Face's on random audio: one clip in fp32 on a CPU, batches in bf16 on a GPU."""

    preset: str = "paper"
    """Preset for the size of the encoder. Its weights are random."""
    batch: Annotated[int, SIZE_OR_DEFAULT] = 0
    """Clips per batch. By default, 24 on a GPU and 1 on a CPU."""
    seconds: Annotated[float, LENGTH] = 15.0
    """Length of a clip."""
    rounds: Annotated[int, SIZE] = 15
    """Timed calls per implementation. Results are medians."""
    threads: Annotated[int, PROCESSES] = 2
    """CPU threads."""
    out: Path | None = None
    """JSON file for the results."""


def run(arguments: list[str]) -> None:
    command = parse(BenchEncode, "sjepa bench encode", arguments)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    before = torch.get_num_threads()
    torch.set_num_threads(command.threads)
    try:
        results = measure(command, device)
    finally:
        torch.set_num_threads(before)
    print_results(results)
    save(results, command.out)


@torch.inference_mode()
def measure(command: BenchEncode, device: torch.device) -> dict[str, Any]:
    gpu = device.type == "cuda"
    batch = command.batch or (24 if gpu else 1)
    announce(f"Making the encoder of {command.preset}, and the same network in transformers")
    torch.manual_seed(0)
    encoder = EncoderNetwork(load_preset(command.preset).encoder).to(device).eval()
    theirs = make_hubert(encoder, device)
    audio = 0.1 * torch.randn(batch, round(command.seconds * SAMPLE_RATE), device=device)

    def in_bf16(work: Callable[[], Tensor]) -> Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=gpu):
            return work()

    contestants = {
        "sjepa": lambda: in_bf16(lambda: encoder(audio).last),
        "transformers": lambda: in_bf16(lambda: theirs(audio).last_hidden_state),
    }
    one, other = (work().float() for work in contestants.values())
    timed = summarize(time_alternately("the encoder", contestants, device, command.rounds), ours="sjepa")
    rates = {name: batch * command.seconds / figure["ms"] * 1e3 for name, figure in timed.items()}
    return describe_machine(device) | {
        "preset": command.preset,
        "batch": batch,
        "seconds": command.seconds,
        "rounds": command.rounds,
        "precision": "bf16" if gpu else "fp32",
        "encode": {name: timed[name] | {"audio_per_second": rates[name]} for name in timed},
        "ratio": timed["transformers"]["ratio"],
        "largest_difference": float((one - other).abs().max()),
        "largest_output": float(other.abs().max()),
    }


def make_hubert(encoder: EncoderNetwork, device: torch.device) -> Any:
    """Make the same network with transformers, using torch's fused attention."""
    try:
        import transformers
    except ImportError:
        raise UserError("the comparison needs transformers: pip install 'sjepa[superb]'") from None
    settings: Any = transformers.HubertConfig(**to_hugging_face(encoder.config) | {"attn_implementation": "sdpa"})
    model: Any = transformers.HubertModel(settings)
    missing, unknown = model.load_state_dict(encoder.state_dict(), strict=False)
    assert not unknown
    assert set(missing) <= {"masked_spec_embed"}
    return model.to(device).eval()


def print_results(results: dict[str, Any]) -> None:
    title = (
        f"{results['device']}, {results['threads']} threads, torch {results['torch']}: "
        f"{results['batch']} x {results['seconds']:g} s, {results['precision']}"
    )
    rows = [
        [name, f"{row['ms']:,.1f}", f"{row['audio_per_second']:,.1f}", f"{row['ratio']:.2f}"]
        for name, row in results["encode"].items()
    ]
    print_table(title, ["encoder", "ms", "audio s/s", "ratio to sjepa"], rows)
    print(f"largest difference {results['largest_difference']:.1e}, largest output {results['largest_output']:.1f}")

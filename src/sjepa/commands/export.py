"""`sjepa export`: an encoder for other programs."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from sjepa.bounds import INDEX
from sjepa.errors import UserError
from sjepa.subcommands import parse

if TYPE_CHECKING:
    from sjepa.runs.encoder import Encoder


@dataclass(frozen=True)
class Export:
    """Write an encoder for Hugging Face transformers, ONNX or torch.export, with a model card.

    `sjepa export runs/mine --to hf my-encoder` makes a folder for transformers.AutoModel.from_pretrained and for all
    commands of sjepa. The mixture and the cluster head go with it.
    """

    source: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN|ENCODER")]
    """A run of `sjepa pretrain`, an encoder folder, a file of weights, or the name of a shipped encoder."""
    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")]
    """Where to write."""
    to: Literal["hf", "release", "onnx", "torch"]
    """hf: transformers' HubertModel; release: that in fp16 with checksums; onnx: encoder.onnx; torch: encoder.pt2."""
    half: bool = False
    """With `--to hf`: weights in fp16, half of the size."""
    ema: bool = False
    """Of a run: the target encoder, whose features the mixture reads, instead of the encoder that is trained."""
    licence: str = "unknown"
    """Licence of the weights for the model card, as model hubs abbreviate it: apache-2.0, cc-by-4.0 and so on."""
    step: Annotated[int | None, INDEX] = None
    """Of a run: the checkpoint of this step in place of the newest encoder."""
    name: str = ""
    """Name in the model card; the folder's by default."""
    results: tuple[Path, ...] = ()
    """Folders with results of this encoder for the card; its run and `runs` by default."""
    int8: bool = False
    """With `--to onnx`: weights of 8 bits, a quarter of the size. Outputs differ slightly from the encoder's."""
    force: bool = False
    """Replace files in a folder that exists."""


def run(arguments: list[str]) -> None:
    command = parse(Export, "sjepa export", arguments)
    if command.int8 and command.to != "onnx":
        raise UserError(f"--int8 goes with --to onnx, not with --to {command.to}")
    if command.half and command.to not in ("hf", "release"):
        raise UserError(f"--half goes with --to hf, not with --to {command.to}")
    from sjepa.export.card import model_card
    from sjepa.export.facts import read_facts
    from sjepa.export.hugging_face import write_checksums, write_hugging_face
    from sjepa.export.target import new_folder
    from sjepa.fields import refuse_surprises
    from sjepa.files import write_whole
    from sjepa.model.formats import fingerprint
    from sjepa.model.named import encoder_names, resolve_encoder

    source = resolve_encoder(command.source) if str(command.source) in encoder_names() else command.source
    facts = read_facts(source)
    with new_folder(command.folder, command.force) as partial:
        encoder = load_encoder(source, command.step, command.ema)
        if facts is not None and encoder.held_clusters:
            facts = dataclasses.replace(facts, step=encoder.clusters.info.step)
        results = results_of(source, fingerprint(encoder), command.results)
        check = ""
        if command.to in ("hf", "release"):
            half = command.half or command.to == "release"
            encoder = write_hugging_face(encoder, partial, facts, half)
            if half:
                check = "\n\nWeights are in fp16, rounded from fp32. Results were measured before rounding."
        else:
            check = write_graph(encoder, partial, command)
        if command.ema:
            check += "\n\nThese are the weights of the target encoder, an average over training steps."
        name = command.name or command.folder.absolute().name
        with refuse_surprises(command.source):
            card = model_card(
                name, facts, encoder, to=command.to, licence=command.licence, results=results, check=check
            )
        write_whole(partial / "README.md", card)
        if command.to == "release":
            write_checksums(partial)
        files = sorted(partial.iterdir(), key=lambda file: file.name)
        size = sum(file.stat().st_size for file in files) / 1e6
    print(f"{command.folder}: {', '.join(file.name for file in files)} ({size:,.1f} MB)")
    if check:
        print(" ".join(check.split()))
    if command.licence == "unknown":
        print("The model card states no licence: --licence apache-2.0, for example, states one")
    if results.startswith("None"):
        print(f"The model card has no results: `sjepa probe --encoder {command.source} --data CORPUS` makes some")


def load_encoder(source: Path, step: int | None, ema: bool) -> "Encoder":
    from sjepa.runs.encoder import Encoder
    from sjepa.runs.steps import encoder_at

    if step is None and not ema:
        return Encoder.from_pretrained(source)
    return encoder_at(source, step, ema)


def write_graph(encoder: "Encoder", folder: Path, command: Export) -> str:
    """Write the encoder's graph; returns how close its outputs are."""
    from sjepa.export.graphs import write_onnx, write_torch

    largest = (write_onnx if command.to == "onnx" else write_torch)(encoder, folder)
    if not command.int8:
        return f"Hidden states of what was written differ from the encoder's by {largest:.1e} at most."
    from sjepa.export.int8 import write_int8

    error = write_int8(encoder, folder)
    return f"With weights of 8 bits the last hidden state differs from the encoder's by {error:.1%} of its size."


def results_of(source: Path, weights: str, folders: tuple[Path, ...]) -> str:
    """Tables of what was measured on exactly these weights."""
    from sjepa.evaluate.results import find_results
    from sjepa.evaluate.table import build_sections
    from sjepa.evaluate.tabular import to_markdown
    from sjepa.runs.locate import find_run

    run = find_run(source)
    near = source if run is None else run.path
    places = folders or [folder for folder in (near, Path("runs")) if folder.is_dir()]
    found = [result for result in find_results(places) if result["encoder"]["fingerprint"] == weights]
    unique = list({str(result): result for result in found}.values())
    if unique:
        return to_markdown(build_sections(unique, with_reported=False)).replace("## ", "### ").rstrip()
    if folders:
        raise UserError(
            f"no results of these weights below {', '.join(map(str, folders))}: `sjepa probe`, `units` and `superb` "
            f"with --encoder {source} write them"
        )
    return "None were at hand when this card was written."

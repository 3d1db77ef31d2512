"""`sjepa export`: write an encoder in a format that other programs load."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from sjepa.bounds import INDEX
from sjepa.errors import UserError
from sjepa.subcommands import parse

if TYPE_CHECKING:
    from sjepa.model.card_facts import CardFacts
    from sjepa.runs.encoder import Encoder

ROUNDED_LATER = "The weights were rounded to fp16 after these measurements."


@dataclass(frozen=True)
class Export:
    """Write an encoder for Hugging Face transformers, ONNX or torch.export, with a model card.

    `sjepa export runs/mine my-encoder --to hf` writes a folder that transformers.AutoModel.from_pretrained and all
    commands of sjepa load. With hf and release, the folder includes the mixture and the cluster head.
    """

    source: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN|ENCODER")]
    """A run of `sjepa pretrain`, an encoder folder, a file of weights, or the name of a shipped encoder."""
    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")]
    """Folder to write to."""
    to: Literal["hf", "release", "onnx", "torch"]
    """hf: a HubertModel of transformers. release: the same in fp16, with checksums. onnx: encoder.onnx. torch:
    encoder.pt2 of torch.export."""
    half: bool = False
    """With `--to hf`: store the weights in fp16, at half the size."""
    ema: bool = False
    """Export the target encoder of a run (the moving average that the mixture reads) instead of the encoder."""
    licence: str = ""
    """Licence of the weights in the model card, as an identifier of the Hugging Face Hub such as apache-2.0. Default:
    the licence of an exported or shipped encoder, or unknown."""
    step: Annotated[int | None, INDEX] = None
    """Use the checkpoint at this step instead of the newest encoder of a run; see train.keep_every."""
    name: str = ""
    """Name in the model card. Default: the name of the folder."""
    about: str = ""
    """A paragraph for the model card, in Markdown: for example the audio, its licences, and whom to credit.
    Default: the paragraph of an exported or shipped encoder."""
    results: tuple[Path, ...] = ()
    """Folders to search for results of this encoder, for the model card. Default: its run, and `runs`, or else
    the results of an exported or shipped encoder."""
    int8: bool = False
    """With `--to onnx`: store 8-bit weights, at a quarter of the size. The outputs differ slightly."""
    force: bool = False
    """Replace an earlier export in an existing folder. Its other files stay."""


def run(arguments: list[str]) -> None:
    command = parse(Export, "sjepa export", arguments)
    if command.int8 and command.to != "onnx":
        raise UserError(f"--int8 works with --to onnx, not with --to {command.to}")
    if command.half and command.to not in ("hf", "release"):
        raise UserError(f"--half works with --to hf, not with --to {command.to}")
    from sjepa.export.card import model_card
    from sjepa.export.destination import new_folder
    from sjepa.export.facts import read_facts
    from sjepa.export.hugging_face import write_checksums, write_hugging_face
    from sjepa.fields import refuse_surprises
    from sjepa.files import write_whole
    from sjepa.model.encoder_folder import EncoderFolder
    from sjepa.model.formats import fingerprint
    from sjepa.model.named import encoder_names, resolve_encoder
    from sjepa.runs.steps import load_encoder

    source = resolve_encoder(command.source) if str(command.source) in encoder_names() else command.source
    facts = read_facts(source)
    with new_folder(command.folder, command.force, source) as partial:
        encoder = load_encoder(source, command.step, command.ema)
        if facts is not None and encoder.held_clusters:
            facts = facts.until(encoder.clusters.info.phase, encoder.clusters.info.step)
        measured = fingerprint(encoder)
        card = card_facts(source, measured, command)
        notes: list[str] = []
        if command.to in ("hf", "release"):
            half = command.half or command.to == "release"
            encoder = write_hugging_face(encoder, partial, facts, half)
            rounded = fingerprint(encoder) != measured
            if rounded and card.results:
                card = replace(card, results=f"{card.results}\n\n{ROUNDED_LATER}")
            card.save(EncoderFolder(partial).card)
            if half:
                notes.append("Weights are in fp16, rounded from fp32." if rounded else "Weights are in fp16.")
        else:
            notes.append(write_graph(encoder, partial, command))
        if command.ema:
            notes.append("These are the weights of the target encoder, an average over training steps.")
        name = command.name or command.folder.absolute().name
        with refuse_surprises(command.source):
            text = model_card(name, facts, encoder, to=command.to, card=card, notes="\n\n".join(notes))
        write_whole(partial / "README.md", text)
        if command.to == "release":
            write_checksums(partial)
        files = sorted(partial.iterdir(), key=lambda file: file.name)
        size = sum(file.stat().st_size for file in files) / 1e6
    print(f"{command.folder}: {', '.join(file.name for file in files)} ({size:,.1f} MB)")
    if notes:
        print(" ".join(notes))
    if not card.known_licence:
        print("The model card states no licence; set one with --licence, for example --licence apache-2.0")
    if not card.results:
        print(f"The model card has no results; `sjepa probe --encoder {command.source} --data CORPUS` measures some")


def write_graph(encoder: "Encoder", folder: Path, command: Export) -> str:
    """Write the encoder's graph, and return a sentence on how close its outputs are."""
    from sjepa.export.graphs import write_onnx, write_torch

    largest = (write_onnx if command.to == "onnx" else write_torch)(encoder, folder)
    if not command.int8:
        return f"The exported hidden states differ from the encoder's by at most {largest:.1e}."
    from sjepa.export.int8 import write_int8

    error = write_int8(encoder, folder)
    return f"With 8-bit weights, the relative error of the last hidden state is {error:.1%} (root mean square)."


def card_facts(source: Path, weights: str, command: Export) -> "CardFacts":
    """Return licence, credit and results: of the command, or else of the folder that the encoder comes from."""
    from sjepa.model.card_facts import CardFacts, read_card_facts
    from sjepa.model.encoder_folder import find_encoder_files

    known = read_card_facts(find_encoder_files(source).card)
    results = results_tables(source, weights, command.results) or known.results
    return CardFacts(command.licence or known.licence, command.about or known.about, results)


def results_tables(source: Path, weights: str, folders: tuple[Path, ...]) -> str:
    """Return tables of the results that were measured on exactly these weights, or an empty string."""
    from sjepa.evaluate.results import find_results
    from sjepa.evaluate.table import build_sections
    from sjepa.evaluate.tabular import to_markdown
    from sjepa.runs.locate import find_run

    run = find_run(source)
    near = source if run is None else run.path
    places = folders or [folder for folder in (near, Path("runs")) if folder.is_dir()]
    found = [result for result in find_results(places) if result["encoder"]["fingerprint"] == weights]
    if found:
        return to_markdown(build_sections(found, with_reported=False), level=3).rstrip()
    if folders:
        raise UserError(
            f"no results of these weights in {', '.join(map(str, folders))}: `sjepa probe`, `units` and `superb` "
            f"with --encoder {source} write them"
        )
    return ""

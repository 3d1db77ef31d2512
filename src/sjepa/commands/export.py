"""`sjepa export`: a run's encoder for other programs."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from sjepa.bounds import INDEX
from sjepa.errors import UserError
from sjepa.subcommands import parse


@dataclass(frozen=True)
class Export:
    """Write a run's encoder for Hugging Face transformers, ONNX or torch.export, with a model card.

    `sjepa export runs/mine --to hf my-encoder` makes a folder for transformers.AutoModel.from_pretrained.
    """

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """A run of `sjepa pretrain`."""
    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")]
    """Where to write."""
    to: Literal["hf", "onnx", "torch"]
    """hf: transformers' HubertModel; onnx: encoder.onnx; torch: encoder.pt2 of torch.export."""
    licence: str = "unknown"
    """Licence of the weights for the model card, as model hubs abbreviate it: apache-2.0, cc-by-4.0 and so on."""
    step: Annotated[int | None, INDEX] = None
    """The checkpoint of this step in place of the newest encoder."""
    name: str = ""
    """Name in the model card; the folder's by default."""
    results: tuple[Path, ...] = ()
    """Folders with results of this encoder for the card; the run itself and `runs` by default."""
    int8: bool = False
    """With `--to onnx`: weights of 8 bits, a quarter of the size. Outputs differ slightly from the encoder's."""
    force: bool = False
    """Replace files in a folder that exists."""


def run(arguments: list[str]) -> None:
    command = parse(Export, "sjepa export", arguments)
    if command.int8 and command.to != "onnx":
        raise UserError(f"--int8 goes with --to onnx, not with --to {command.to}")
    from sjepa.export.card import model_card, read_facts
    from sjepa.export.graphs import write_onnx, write_torch
    from sjepa.export.hugging_face import write_hugging_face
    from sjepa.export.target import new_folder
    from sjepa.fields import refuse_surprises
    from sjepa.files import write_whole
    from sjepa.model.encoder import Encoder
    from sjepa.model.formats import fingerprint
    from sjepa.runs.steps import encoder_at

    facts = read_facts(command.run)
    if command.step is not None:
        facts = dataclasses.replace(facts, step=command.step)
    with new_folder(command.folder, command.force) as partial:
        if command.step is None:
            encoder = Encoder.from_pretrained(command.run)
        else:
            encoder = encoder_at(command.run, command.step)
        results = results_of(command.run, fingerprint(encoder), command.results)
        check = ""
        if command.to == "hf":
            write_hugging_face(encoder, partial)
        else:
            largest = (write_onnx if command.to == "onnx" else write_torch)(encoder, partial)
            check = f"Hidden states of what was written differ from the encoder's by {largest:.1e} at most."
        if command.int8:
            from sjepa.export.int8 import write_int8

            error = write_int8(encoder, partial)
            check = (
                f"With weights of 8 bits the last hidden state differs from the encoder's by {error:.1%} of its size."
            )
        name = command.name or command.folder.absolute().name
        with refuse_surprises(command.run):
            card = model_card(
                name, facts, encoder, to=command.to, licence=command.licence, results=results, check=check
            )
        write_whole(partial / "README.md", card)
        written = sorted(file.name for file in partial.iterdir())
    print(f"{command.folder}: {', '.join(written)}")
    if check:
        print(check)
    if command.licence == "unknown":
        print("The model card states no licence: --licence apache-2.0, for example, states one")
    if results.startswith("None"):
        print(f"The model card has no results: `sjepa probe --encoder {command.run} --data CORPUS` makes some")


def results_of(run: Path, weights: str, folders: tuple[Path, ...]) -> str:
    """Tables of what was measured on exactly these weights."""
    from sjepa.evaluate.table import build_sections, find_results
    from sjepa.evaluate.tabular import to_markdown

    places = folders or [folder for folder in (run, Path("runs")) if folder.is_dir()]
    found = [result for result in find_results(places) if result["encoder"]["fingerprint"] == weights]
    unique = list({str(result): result for result in found}.values())
    if unique:
        return to_markdown(build_sections(unique, with_reported=False)).replace("## ", "### ").rstrip()
    if folders:
        raise UserError(
            f"no results of these weights below {', '.join(map(str, folders))}: `sjepa probe`, `units` and `superb` "
            f"with --encoder {run} write them"
        )
    return "None were at hand when this card was written."

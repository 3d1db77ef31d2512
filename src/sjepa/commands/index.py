"""`sjepa index`: from folders, known corpora and lists to an index."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from sjepa.bounds import CUT
from sjepa.data.layouts import Layout
from sjepa.subcommands import parse


@dataclass(frozen=True)
class Index:
    """Index audio: read headers, cut long recordings, and write columns that open at once, whatever the size.

    `sjepa index audio/ --out corpus` takes any folder of wav, flac, ogg, opus or mp3; `sjepa index LibriSpeech/ --out
    corpus` keeps speakers, sexes, chapters and transcripts. Run the same command again to go on after an interruption.
    """

    sources: Annotated[tuple[str, ...], tyro.conf.Positional]
    """Folders of audio (with their manifest.jsonl), Kaldi, lhotse or Hugging Face folders, lists (.jsonl, .csv, .tsv,
    .parquet) or tars of audio."""
    out: Path
    """Folder of the index."""
    layout: Layout = "auto"
    """How the sources are laid out; auto looks. Granary and other NeMo manifests are `manifest`."""
    language: tuple[str, ...] = ()
    """Only utterances of these languages, as lists name them (lang, language, source_lang, locale): `en` also takes
    en-US. Empty for all."""
    max_seconds: Annotated[float, CUT] = 15.0
    """Longer recordings are cut, by voice activity where it is known, else at silences."""
    cut_transcribed: bool = False
    """Cut utterances that have a transcript too; their pieces lose it. Otherwise training crops them."""


def run(arguments: list[str]) -> None:
    command = parse(Index, "sjepa index", arguments)
    from sjepa.data.build import build_index, summary
    from sjepa.errors import UserError

    if not command.sources:
        raise UserError("say what to index: sjepa index FOLDER --out corpus")
    facts = build_index(
        list(command.sources),
        command.out,
        layout=command.layout,
        max_seconds=command.max_seconds,
        cut_transcribed=command.cut_transcribed,
        languages=command.language,
    )
    print("\n".join(summary(facts)))
    if facts["refused"]:
        refused = command.out / "refused.txt"
        print(f"{facts['refused']:,} left out, listed in {refused}:")
        with refused.open(encoding="utf-8") as file:
            for line, _ in zip(file, range(5), strict=False):
                print(f"  {line.rstrip()}")
    print(f"The index is in {command.out}: sjepa pretrain --data {command.out}, or sjepa shard {command.out}")

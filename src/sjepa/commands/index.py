"""`sjepa index`: make an index of folders, known corpora and lists."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from sjepa.bounds import CUT
from sjepa.data.layouts import Layout
from sjepa.subcommands import parse


@dataclass(frozen=True)
class Index:
    """Scan audio once: read headers and labels, cut long recordings, and write an index that opens fast at any size.

    `sjepa index audio/ --out corpus` reads any folder of wav, flac, ogg, opus or mp3. `sjepa index LibriSpeech/ --out
    corpus` keeps speakers, sexes, chapters and transcripts. Run the same command again to continue.
    """

    sources: Annotated[tuple[str, ...], tyro.conf.Positional]
    """Folders of audio (with their manifest.jsonl), Kaldi, lhotse or Hugging Face folders, lists (.jsonl, .csv, .tsv,
    .parquet) or tar files of audio."""
    out: Path
    """Folder for the index."""
    layout: Layout = "auto"
    """Layout of the sources; auto detects it. For Granary and other NeMo manifests, give `manifest`."""
    language: tuple[str, ...] = ()
    """Keep only utterances in these languages, spelled as in the lists (columns lang, language, source_lang or locale).
    `en` also matches en-US. Default: all."""
    max_seconds: Annotated[float, CUT] = 15.0
    """Cut longer recordings: by voice activity if it is known, otherwise at silences."""
    cut_transcribed: bool = False
    """Also cut utterances that have a transcript; the pieces lose it. By default training crops them."""


def run(arguments: list[str]) -> None:
    command = parse(Index, "sjepa index", arguments)
    from sjepa.data.build import build_index, summarise_index
    from sjepa.data.index_folder import IndexFolder
    from sjepa.errors import UserError

    if not command.sources:
        raise UserError("no source given: sjepa index FOLDER --out corpus")
    facts = build_index(
        list(command.sources),
        command.out,
        layout=command.layout,
        max_seconds=command.max_seconds,
        cut_transcribed=command.cut_transcribed,
        languages=command.language,
    )
    print("\n".join(summarise_index(facts)))
    if facts["refused"]:
        refused = IndexFolder(command.out).refused
        print(f"{facts['refused']:,} left out, listed in {refused}:")
        with refused.open(encoding="utf-8") as file:
            for line, _ in zip(file, range(5), strict=False):
                print(f"  {line.rstrip()}")
    place = shlex.quote(str(command.out))
    print(f"The index is in {command.out}: sjepa pretrain --data {place}, or sjepa shard {place}")

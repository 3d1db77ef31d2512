"""Open a corpus: a folder of audio, an index or shards, or several of them with weights."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np

from sjepa.counts import format_count
from sjepa.data.corpus import Corpus, decode, scan_folder
from sjepa.data.corpus_mix import CorpusMix
from sjepa.data.index_folder import IndexFolder
from sjepa.data.layouts import SCANNED, detect_layout
from sjepa.data.shard_cache import ShardCache
from sjepa.data.storage import is_url
from sjepa.errors import UserError
from sjepa.progress import say

LISTS = (".jsonl", ".json", ".csv", ".tsv", ".parquet", ".arrow", ".tar")


def open_corpus(
    data: str | Path,
    max_seconds: float,
    cache: str,
    memory_gb: float,
    shard_cache: ShardCache | None = None,
) -> Corpus | CorpusMix:
    """Open a folder of audio, an index or shards (folder or URL), or a source in any layout that `sjepa index` reads.

    Several corpora are mixed: `a=0.7,b=0.3` by weight, `a,b` by size. The corpus is decoded into memory if it fits, and
    files that were left out are reported. Long files of a plain folder are cut to `max_seconds`; an index is already
    cut. `shard_cache` caches shards that are read from URLs.
    """
    parts = parse_weights(str(data))
    corpora = [open_one(where, max_seconds) for where, _ in parts]
    size = sum(float(corpus.length.sum(dtype=np.int64)) for corpus in corpora) * 2 / 2**30
    if cache == "memory" or (cache == "auto" and size <= memory_gb):
        corpora = [decode(corpus) for corpus in corpora]
    elif shard_cache is not None:
        corpora = [replace(corpus, shard_cache=shard_cache) for corpus in corpora]
    for corpus, (where, _) in zip(corpora, parts, strict=True):
        left_out = f"; {len(corpus.refused)} left out, whole or in part:" if corpus.refused else ""
        say(f"{f'{where}: ' if len(parts) > 1 else ''}{describe_amount(corpus, max_seconds)}{left_out}")
        for line in corpus.refused[:5]:
            say(f"  {line}")
        if len(corpus.refused) > 5:
            say(f"  and {len(corpus.refused) - 5} more")
    if len(corpora) == 1:
        return corpora[0]
    weights = [weight or corpus.hours for corpus, (_, weight) in zip(corpora, parts, strict=True)]
    return CorpusMix.combine(corpora, weights)


def describe_amount(corpus: Corpus, max_seconds: float) -> str:
    """The amount of usable audio, with the number of files if some files of a plain folder were cut."""
    if corpus.audio is not None:  # utterances that did not decode keep their place, but are no audio
        usable = [not isinstance(samples, str) and len(samples) > 0 for samples in corpus.audio]
        corpus = corpus.select(np.array(usable), audio=None)
    held = format_count(len(corpus), "utterance")
    files = len(corpus) if corpus.is_cut else len(np.unique(corpus.file))
    if len(corpus) > files:
        held = f"{format_count(files, 'file')}, {held} of at most {max_seconds:g} s"
    return f"{held}, {corpus.hours:.2f} hours"


def parse_weights(data: str) -> list[tuple[str, float | None]]:
    """Split `a=0.7,b=0.3` into pairs. In `a,b` the weights are None, for the sizes. Anything else is one place."""
    if os.path.exists(data) or (is_url(data) and "," not in data):
        return [(data, 1.0)]
    items = [item.strip() for item in data.split(",")]
    if "=" not in data:
        found = [is_url(item) or (item != "" and os.path.exists(item)) for item in items]
        several = all(found) or (any(found) and not is_url(data))  # a comma may be part of one URL
        return [(item, None) for item in items] if several else [(data, 1.0)]
    parts: list[tuple[str, float | None]] = []
    for item in items:
        where, _, given = item.rpartition("=")
        try:
            weight = float(given)
        except ValueError:
            where, weight = "", 0.0
        if not where or not 0 < weight < float("inf"):
            raise UserError(
                f"--data {data}: {item!r} is not PLACE=WEIGHT with a weight above 0, as in a=0.7,b=0.3; without "
                "weights, as in a,b, corpora are mixed by size"
            )
        parts.append((where, weight))
    return parts


def open_one(where: str, max_seconds: float) -> Corpus:
    if IndexFolder(where).exists:
        from sjepa.data.index import open_index  # imported here because it needs pyarrow

        return open_index(where)
    if needs_reader(where):
        from sjepa.data.build import read_corpus

        return read_corpus(where, max_seconds)
    return scan_folder(where, max_seconds)


def needs_reader(where: str) -> bool:
    """Whether a source lists its audio in manifests or stores it in tables, so that a scan for files is not enough."""
    if os.path.isdir(where):
        return detect_layout(where) not in SCANNED
    return os.path.isfile(where) and where.removesuffix(".gz").endswith(LISTS)


def concatenate_audio(corpus: Corpus | CorpusMix) -> np.ndarray:
    """All samples of a decoded corpus in one array, to take noise from."""
    assert corpus.audio is not None
    return np.concatenate([samples for samples in corpus.audio if not isinstance(samples, str)])

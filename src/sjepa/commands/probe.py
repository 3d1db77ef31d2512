"""`sjepa probe`: probe a frozen encoder."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from sjepa.bounds import INDEX, SEED
from sjepa.device import Device
from sjepa.subcommands import parse


@dataclass(frozen=True)
class Probe:
    """Probe a frozen encoder for speaker, gender, chapter and phones, by the paper's protocol.

    Phones are probed twice: on random frames, as in the paper, and with held-out speakers. Properties that the corpus
    does not label are skipped.
    """

    encoder: str
    """A run, an encoder folder, a shipped encoder (english-compact), a Hugging Face speech encoder (HuBERT, WavLM,
    wav2vec 2.0, data2vec-audio, UniSpeech, Whisper), s3prl:NAME, MODULE:FUNCTION, untrained:PATH, mfcc, mfcc+context or
    logmel."""
    data: Path
    """LibriSpeech, a corpus with labels.jsonl, or any corpus that `sjepa index` reads. Phones come from
    phones-SUBSET.jsonl.gz next to LibriSpeech, from labels.jsonl, or from --alignments."""
    out: Path | None = None
    """Folder for the results. Default: probe/ENCODER below RUN/results or runs, with your corpus and the
    options that you changed."""
    subset: str = "dev-clean"
    """Subset of LibriSpeech."""
    alignments: Path | None = None
    """Phones and words with times, for any corpus and language: a folder of TextGrids, CTM files or tables."""
    layer: str = "last"
    """Layer to probe: a number from 0, last, or all."""
    frames: Annotated[int, INDEX] = 125_000
    """Frames for the phone probes, from random whole utterances; 0 uses all, as in the paper, and is slow. The other
    probes always use all utterances."""
    step: Annotated[int | None, INDEX] = None
    """Use the checkpoint at this step instead of the newest encoder of a run; see train.keep_every."""
    prosody: bool = False
    """Also probe pitch and energy, which need no labels, and stress and tone, if the phone labels carry them."""
    seed: Annotated[int, SEED] = 0
    """Seed of everything random."""
    device: Device = "auto"
    """Where to run; auto uses a GPU if there is one."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """Precision of the encoder: fp32 as in s3prl, or bf16, which is faster on a GPU."""


def run(arguments: list[str]) -> None:
    command = parse(Probe, "sjepa probe", arguments)
    from sjepa.evaluate.corpus_hash import hash_corpus
    from sjepa.evaluate.labelled import corpus_name, corpus_suffix, read_labelled, report_missing_phones
    from sjepa.evaluate.probe_names import name_scores
    from sjepa.evaluate.probing import run_probes
    from sjepa.evaluate.results import results_folder, write_results
    from sjepa.evaluate.upstream import load_upstream
    from sjepa.files import refuse_file
    from sjepa.locks import lock_folder

    if command.out is not None:
        refuse_file(command.out)
    upstream = load_upstream(command.encoder, command.device, command.precision, command.step)
    suffix = corpus_suffix(command.data, command.subset)
    corpus = read_labelled(command.data, command.subset, phones=False, alignments=command.alignments)
    labels = hash_corpus(corpus)
    out = results_folder(command, "probe", upstream.name, suffix, upstream.fingerprint, labels)
    with lock_folder(out):
        report_missing_phones(corpus, command.data, command.subset, command.alignments)
        where = corpus_name(command.data, command.subset)
        found = run_probes(
            upstream,
            corpus,
            where,
            labels,
            layer=command.layer,
            frames=command.frames,
            seed=command.seed,
            prosody=command.prosody,
        )
        write_results(out, found)
        facts = ", ".join(f"{count:,} {what.replace('_', ' ')}" for what, count in found["data"].items())
        kind = name_scores(name for scores in found["layers"].values() for name in scores)
        about = f"{upstream.name} ({upstream.parameters:,} parameters) on {where}"
        print(f"{about}, {kind} in percent over splits: {facts}")
        for layer, scores in found["layers"].items():
            for name, score in scores.items():
                spread = f"{score['mean']:.1f} ± {score['deviation']:.1f} (chance {score['chance']:.1f})"
                print(f"  {layer}: {name} {spread}")
        print(f"  features: {found['audio_seconds_per_second']:,.0f} audio seconds per second; results in {out}")

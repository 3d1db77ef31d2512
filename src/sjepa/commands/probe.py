"""`sjepa probe`: what probes read from a frozen encoder."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from sjepa.bounds import INDEX, SEED
from sjepa.subcommands import parse


@dataclass(frozen=True)
class Probe:
    """Speaker, gender, chapter and phones from a frozen encoder, by the paper's protocol: mean and deviation of splits.

    Phones are probed twice: on random frames, as the paper does, and with speakers held out. Properties that the corpus
    does not label are left out.
    """

    encoder: str
    """A run, an encoder folder, a Hugging Face speech encoder (HuBERT, WavLM, wav2vec 2.0, data2vec-audio, UniSpeech,
    Whisper), s3prl:NAME, MODULE:FUNCTION, untrained:PATH, mfcc or logmel."""
    data: Path
    """LibriSpeech, for phones with phones-SUBSET.jsonl.gz beside it; a corpus with labels.jsonl; or any other that
    `sjepa index` reads, for phones with --alignments."""
    out: Path | None = None
    """Folder of the results; by default probe/ENCODER, with options that are not as usual, in RUN/results or runs."""
    subset: str = "dev-clean"
    """Subset of LibriSpeech."""
    alignments: Path | None = None
    """Phones and words with times, for any corpus and language: a folder of TextGrids, CTM files or tables."""
    layer: str = "last"
    """A layer from 0, last, or all."""
    frames: Annotated[int, INDEX] = 125_000
    """Frames for the phone probes, from whole utterances at random; 0 takes all, as the paper does, and is slow."""
    step: Annotated[int | None, INDEX] = None
    """The checkpoint of a run at this step in place of its newest encoder; train.keep_every keeps such checkpoints."""
    prosody: bool = False
    """Also probe pitch and energy, which need no labels, and stress and tone, if the phone labels carry them."""
    seed: Annotated[int, SEED] = 0
    """All randomness follows from it."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to run; auto takes a GPU where there is one."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """In which the encoder computes: fp32 as s3prl does, or bf16, which is faster on a GPU."""


def run(arguments: list[str]) -> None:
    command = parse(Probe, "sjepa probe", arguments)
    from sjepa.evaluate.labelled import corpus_name, read_labelled
    from sjepa.evaluate.probing import run_probes
    from sjepa.evaluate.results import results_folder, write_results
    from sjepa.evaluate.upstream import load_upstream
    from sjepa.locks import lock_folder

    upstream = load_upstream(command.encoder, command.device, command.precision, command.step)
    out = results_folder(command, "probe", upstream.name)
    with lock_folder(out):
        corpus = read_labelled(command.data, command.subset, phones=False, alignments=command.alignments)
        where = corpus_name(command.data, command.subset)
        found = run_probes(
            upstream,
            corpus,
            where,
            layer=command.layer,
            frames=command.frames,
            seed=command.seed,
            prosody=command.prosody,
        )
        write_results(out, found)
        facts = ", ".join(f"{count:,} {what.replace('_', ' ')}" for what, count in found["data"].items())
        print(
            f"{upstream.name} ({upstream.parameters:,} parameters) on {where}, accuracy in percent over splits: {facts}"
        )
        for layer, scores in found["layers"].items():
            for name, score in scores.items():
                spread = f"{score['mean']:.1f} ± {score['deviation']:.1f} (chance {score['chance']:.1f})"
                print(f"  {layer}: {name} {spread}")
        print(f"  features: {found['audio_seconds_per_second']:,.0f} audio seconds per second; results in {out}")

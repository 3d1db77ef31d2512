"""Which length of windows suits long recordings, and how do joined windows differ from the whole recording?

    python benchmarks/embed_windows.py english-compact CORPORA --out benchmarks/results/embed-windows.json

CORPORA contains LibriSpeech/dev-clean and its phones. The first table has the PNMI of the cluster head's units with
phones, in recordings of about 160 s that are encoded whole and in windows of several lengths. Its recordings are
utterances of one speaker in their order, and utterances of all speakers at random. PNMI is of all frames of a kind of
recording together; with few frames it is too high.

The second table compares windows of the default length with the encoder on the whole recording, and measures the
joins. Its recordings are concatenated from utterances of the first eight speakers: one voice, all voices, all voices at
random levels (0 to -30 dB), and all voices with pauses of up to 20 s.
"""

import argparse
import itertools
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from output import to_markdown

from sjepa import Encoder
from sjepa.audio.frames import frame_centres, frame_count
from sjepa.audio.io import SAMPLE_RATE
from sjepa.embed.network import Network
from sjepa.embed.window_config import MARGIN, WindowConfig
from sjepa.embed.windows import cut_windows, join_windows
from sjepa.evaluate.agreement import measure_agreement
from sjepa.evaluate.labelled import LabelledUtterance, read_labelled
from sjepa.model.moments import measure_moments
from sjepa.progress import track

SPEAKERS, UTTERANCES = 8, 24  # UTTERANCES in a recording
KINDS = ("one voice", "eight voices", "eight voices at levels from 0 to −30 dB", "eight voices, pauses of up to 20 s")
RECORDINGS, SECONDS = 5, 160  # RECORDINGS of each kind, of about SECONDS, in the table of PNMI
WINDOWS = {
    "whole": None,
    "30 s": WindowConfig(30.0),
    "15 s": WindowConfig(15.0),
    "8 s": WindowConfig(8.0, 4.0),  # with the longest overlap that is allowed
}


def take_seconds(corpus: Iterable[LabelledUtterance]) -> list[LabelledUtterance]:
    """Return the first utterances that have about SECONDS together."""
    taken: list[LabelledUtterance] = []
    for item in corpus:
        if sum(len(other.phones) for other in taken) >= 100 * SECONDS:  # 100 labels per second
            break
        taken.append(item)
    return taken


def choose_utterances(speakers: Sequence[Sequence[LabelledUtterance]]) -> dict[str, list[list[LabelledUtterance]]]:
    """Return the utterances of each recording in the table of PNMI, by kind of recording."""
    spread = speakers[:: len(speakers) // RECORDINGS][:RECORDINGS]
    corpus, rng = [item for items in speakers for item in items], np.random.default_rng(0)
    orders = [rng.permutation(len(corpus)) for _ in range(RECORDINGS)]
    return {
        "one voice": [take_seconds(items) for items in spread],
        "many voices": [take_seconds(corpus[i] for i in order) for order in orders],
    }


def measure_units(recordings: Sequence[Sequence[LabelledUtterance]], network: Network) -> dict[str, Any]:
    """Measure the PNMI of units with phones for each length of windows."""
    units: dict[str, list[np.ndarray]] = {name: [] for name in WINDOWS}
    phones: list[np.ndarray] = []
    for items in track(recordings, "Units", len(recordings)):
        waveforms = [item.utterance.read() for item in items]
        samples = np.concatenate(waveforms)
        phones.append(label_frames(items, waveforms))
        # The front end runs once: in windows it computes the same features as in the whole recording.
        convolved = network.encoder.convolve(torch.from_numpy(samples)[None])
        for name, config in WINDOWS.items():
            units[name].append(network.units(transform(convolved, samples, network, config)).numpy())
    return {
        "speakers": [len({item.speaker for item in items}) for items in recordings],
        "frames": sum(map(len, phones)),
        "pnmi": {name: pnmi(np.concatenate(found), np.concatenate(phones)) for name, found in units.items()},
        "pnmi_of_each_recording": {
            name: [pnmi(x, y) for x, y in zip(found, phones, strict=True)] for name, found in units.items()
        },
    }


def label_frames(items: Sequence[LabelledUtterance], waveforms: Sequence[np.ndarray]) -> np.ndarray:
    """Return the phone at the centre of each frame of the concatenated utterances."""
    ends = np.cumsum([len(waveform) for waveform in waveforms])
    centres = frame_centres(frame_count(int(ends[-1])))
    parts = np.split(centres, np.searchsorted(centres, ends[:-1] / SAMPLE_RATE))
    starts = [0, *ends[:-1]]
    return np.concatenate(
        [
            item.frame_phones(len(part), part - start / SAMPLE_RATE)
            for item, part, start in zip(items, parts, starts, strict=True)
        ]
    )


def pnmi(units: np.ndarray, phones: np.ndarray) -> float:
    return round(measure_agreement(units, phones)["pnmi"], 4)


def transform(
    convolved: torch.Tensor, samples: np.ndarray, network: Network, config: WindowConfig | None
) -> torch.Tensor:
    """Return the frames (T, D) of a recording that is encoded whole or in windows, from the front end's features."""
    if config is None:
        return network.encoder.transform(convolved).last[0]
    parts = [
        (w.start, network.encoder.transform(convolved[:, w.start : w.start + config.frames]).last[0])
        for w in cut_windows([samples], config)
    ]
    return torch.cat(list(join_windows(parts, config)))


def make_recording(kind: str, speakers: Sequence[Sequence[LabelledUtterance]], rng: np.random.Generator) -> np.ndarray:
    """Concatenate utterances of one speaker, or of all in random order."""
    each = UTTERANCES // len(speakers)
    mixed = [item for items in speakers for item in items[:each]]
    order = rng.permutation(len(mixed))
    pieces = []
    for item in speakers[0][:UTTERANCES] if kind == "one voice" else [mixed[i] for i in order]:
        pieces.append(item.utterance.read() * (10 ** (rng.uniform(-30, 0) / 20) if "levels" in kind else 1.0))
        if "pauses" in kind:
            pieces.append(1e-4 * rng.standard_normal(int(SAMPLE_RATE * rng.choice([0.2, 1, 4, 10, 20]))))
    return np.concatenate(pieces).astype(np.float32)


def compare(samples: np.ndarray, network: Network, config: WindowConfig) -> dict[str, float]:
    """Compare the frames of joined windows with those of the whole recording.

    Steps are changes between neighbouring frames, in the fades and at hard cuts in their middle, relative to the same
    frames of the whole recording. 1 means no visible join.
    """
    whole = network.features([samples])[0]
    moments = measure_moments([samples])
    parts = [(w.start, network.window_features(w.samples, moments)) for w in cut_windows([samples], config)]
    joined = torch.cat(list(join_windows(parts, config)))
    relative = (joined - whole).norm(dim=1) / whole.norm(dim=1)
    same = network.units(joined) == network.units(whole)
    fades, cuts = [], []
    for (start, x), (following, y) in itertools.pairwise(parts):
        last = start + len(x) - MARGIN
        first = last - (config.shared - 2 * MARGIN)
        middle = (first + last) // 2
        steps, expected = (frames[first - 1 : last + 1].diff(dim=0).norm(dim=1) for frames in (joined, whole))
        fades.append(steps / expected)
        cuts.append((y[middle - following] - x[middle - 1 - start]).norm() / (whole[middle] - whole[middle - 1]).norm())
    return {
        "seconds": len(samples) / SAMPLE_RATE,
        "difference_median": float(relative.median()),
        "difference_95": float(relative.quantile(0.95)),
        "same_unit": float(same.float().mean()),
        "step_in_fades": float(torch.cat(fades).median()),
        "step_at_a_hard_cut": float(torch.stack(cuts).median()),
    }


def to_row(kind: str, found: dict[str, float]) -> list[str]:
    shares = [f"{found[name]:.1%}" for name in ("difference_median", "difference_95", "same_unit")]
    return [
        kind,
        f"{found['seconds']:.0f}",
        *shares,
        f"{found['step_in_fades']:.2f}",
        f"{found['step_at_a_hard_cut']:.2f}",
    ]


def make_tables(results: dict[str, Any]) -> tuple[str, str]:
    """Make the tables of docs/embed.md: PNMI by length of windows, and windows compared with the whole."""
    units = [[kind, *(f"{value:.3f}" for value in found["pnmi"].values())] for kind, found in results["units"].items()]
    titles = ["recording", "seconds", "difference, median", "95%", "same unit", "step in fades", "step at a hard cut"]
    rows = [to_row(*row) for row in results["rows"].items()]
    return to_markdown(["recordings", *WINDOWS], units), to_markdown(titles, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("encoder")
    parser.add_argument("corpora", type=Path)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    encoder = Encoder.from_pretrained(given.encoder).requires_grad_(False)
    network = Network(encoder, (encoder.config.layers,), torch.device("cpu"), "head")
    corpus = read_labelled(given.corpora)
    speakers = [list(items) for _, items in itertools.groupby(corpus, lambda item: item.speaker)]
    units = {kind: measure_units(chosen, network) for kind, chosen in choose_utterances(speakers).items()}
    rng, rows, config = np.random.default_rng(0), {}, WindowConfig()
    for kind in track(KINDS, "Recordings", len(KINDS)):
        rows[kind] = compare(make_recording(kind, speakers[:SPEAKERS], rng), network, config)
    command = f"python benchmarks/embed_windows.py {given.encoder} CORPORA"
    results: dict[str, Any] = {"command": command, "encoder": given.encoder, "torch": torch.__version__}
    results |= {"units": units, "window": asdict(config), "rows": rows}
    print("\n\n".join(make_tables(results)))
    if given.out:
        given.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()

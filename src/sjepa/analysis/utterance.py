"""One utterance frame by frame, as in the paper's figure: spectrogram, labels, clusters, posteriors and entropy."""

import base64
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sjepa.analysis.names import LABELS, PATHS
from sjepa.analysis.speech import Speech
from sjepa.analysis.style import (
    INK,
    MASKED,
    MUTED,
    PREDICTOR,
    RULE,
    TARGET,
    UTTERANCE,
    VISIBLE,
    Findings,
    absolute_path,
    figure,
    file_name,
)
from sjepa.audio.encode import encode_audio
from sjepa.audio.frames import FRAMES_PER_SECOND, RECEPTIVE_FIELD, frame_centres
from sjepa.audio.io import SAMPLE_RATE, show_path, to_int16
from sjepa.evaluate.superb.records import Utterance

if TYPE_CHECKING:  # it needs torch, and findings are drawn without
    from sjepa.analysis.restored_run import Frames, RestoredRun

MELS, SHIFT = 80, 160  # spectrogram: bands, samples between columns
CENTRE = RECEPTIVE_FIELD / 2 / SAMPLE_RATE  # of the first frame and the first column, in seconds
RANGE = 12.0  # dynamic range shown, in natural logarithms below the loudest point
TOP = 3
PARTS = (*PATHS, "target")
COLOURS = {"visible": VISIBLE, "masked": PREDICTOR, "target": TARGET}
SHORT = {"visible": "head,\nvisible", "masked": "predictor,\nmasked", "target": "target"}
RANKS = (MASKED, VISIBLE, INK)  # colours of the first, second and third posterior


def file_stem(utterance: Utterance) -> str:
    """The name of an utterance's files, without a suffix."""
    return UTTERANCE + file_name(utterance.name)


def utterance_inputs(utterance: Utterance, start: float, seconds: float, seed: int, step: int | None) -> dict[str, Any]:
    """The inputs that determine the figure of an utterance, as the JSON keeps them."""
    part = {"part": [utterance.start, utterance.samples]} if utterance.start or utterance.samples else {}
    settings = {"start": start, "seconds": seconds, "seed": seed, "step": step}
    return {"path": absolute_path(utterance.path), **part, **settings}


def analyse_utterance(run: "RestoredRun", speech: Speech, longest: float = 20.0) -> Findings:
    """Compute everything that the figure and the explorer show of a stretch of speech, including its audio.

    `longest` is the length to which the stretch was cut.
    """
    pieces = list(run(speech.samples))
    found: Findings = {
        "subject": "utterance",
        "run": run.about,
        "made_from": utterance_inputs(speech.utterance, speech.start, longest, run.seed, run.requested_step),
        "name": speech.utterance.name,
        "path": show_path(speech.utterance.path),
        "start": speech.start,
        "file_seconds": round(speech.duration, 3),
        "seconds": round(len(speech.samples) / SAMPLE_RATE, 4),
        "text": speech.text,
        "speaker": speech.speaker,
        "phones": speech.phones,
        "words": speech.words,
        **{part: top_components(pieces, part) for part in PARTS},
        "spectrogram": spectrogram(speech.samples),
        "audio": encode_for_page(speech.samples),
    }
    return found


def top_components(pieces: "list[Frames]", part: str) -> dict[str, Any]:
    """The three most likely components of each frame with their posteriors, and the entropy."""
    import torch

    from sjepa.analysis.restored_run import entropy_bits

    distributions = torch.cat([getattr(piece, part).float().cpu() for piece in pieces])
    top = distributions.topk(min(TOP, distributions.shape[1]), dim=1)
    return {
        "clusters": top.indices.tolist(),
        "posteriors": np.round(top.values.numpy().astype(float), 4).tolist(),
        "entropy": np.round(entropy_bits(distributions), 4).tolist(),
    }


def spectrogram(samples: np.ndarray) -> dict[str, Any]:
    """Log-mel energies as bytes, column by column: 255 is the loudest point, 0 is `RANGE` below it."""
    import torch

    from sjepa.audio.mfcc import log_mel

    energies = log_mel(torch.from_numpy(samples)[None], MELS, SHIFT)[0].numpy()
    loudest = float(energies.max())
    scaled = np.clip((energies - loudest) / RANGE + 1, 0, 1) if energies.min() < loudest else 0 * energies
    image = np.rint(255 * scaled).astype(np.uint8)
    return {
        "columns": len(image),
        "mels": MELS,
        "seconds_per_column": SHIFT / SAMPLE_RATE,
        "bytes": base64.b64encode(image.tobytes()).decode(),
    }


def encode_for_page(samples: np.ndarray) -> str:
    """Encode audio as FLAC in base64. It is lossless, every browser plays it, and its times are exact."""
    return base64.b64encode(encode_audio(to_int16(samples), "FLAC")).decode()


def spectrogram_image(found: Findings) -> np.ndarray:
    """Decode the stored spectrogram: (mels, columns), low bands first."""
    kept = found["spectrogram"]
    return np.frombuffer(base64.b64decode(kept["bytes"]), np.uint8).reshape(kept["columns"], kept["mels"]).T


def mel_ticks(hertz: list[int]) -> list[float]:
    """Positions of frequencies among the bands, which are equally spaced on Kaldi's mel scale from 20 Hz to 8 kHz."""
    low, high, at = (1127.0 * np.log1p(np.array(f) / 700.0) for f in (20, SAMPLE_RATE / 2, hertz))
    return ((at - low) / (high - low) * MELS).tolist()


def draw_utterance(found: Findings, stem: Path) -> None:
    """Draw the paper's figure for both paths, with the target's clusters and entropy below them."""
    labels = [kind for kind in ("words", "phones") if found[kind]]
    parts = [part for part in PARTS if part in found]
    seconds, frames = found["seconds"], len(found["target"]["entropy"])
    heights = [2.2, *(0.32 for _ in labels), *(0.34 for _ in parts), *(1.2 for _ in parts), 1.1]
    width = float(np.clip(4 + 1.6 * seconds, 8, 24))
    with figure(width, 0.8 + 1.05 * sum(heights), stem) as fig:
        rows = list(fig.subplots(len(heights), 1, sharex=True, height_ratios=heights))
        fig.get_layout_engine().set(h_pad=0.02, hspace=0.02)
        draw_spectrogram(rows.pop(0), found)
        for kind in labels:
            draw_segments(rows.pop(0), found[kind], kind, seconds, width)
        for part in parts:
            draw_strip(rows.pop(0), found[part]["clusters"], part, found["run"]["components"])
        times = frame_centres(frames)
        for part in parts:
            draw_posteriors(rows.pop(0), found, part, times)
        (last,) = rows
        for part in parts:
            last.plot(times, found[part]["entropy"], color=COLOURS[part], lw=1.3, label=LABELS[part])
        last.axhline(1, color=RULE, lw=0.8, ls=(0, (3, 3)))
        last.set_ylabel("entropy\n(bits)", color=MUTED)
        last.set_ylim(bottom=0)
        last.legend(ncols=len(parts), **ABOVE)
        last.set(xlim=(0, seconds), xlabel="seconds")


ABOVE: Any = {"loc": "lower right", "bbox_to_anchor": (1, 1), "fontsize": 7.5, "borderaxespad": 0.0, "borderpad": 0}


def draw_posteriors(axes: Any, found: Findings, part: str, times: np.ndarray) -> None:
    """Draw the posteriors of the three most likely components over time."""
    posteriors = np.array(found[part]["posteriors"])
    for rank, colour in zip(range(posteriors.shape[1]), RANKS, strict=False):
        axes.plot(times, posteriors[:, rank], color=colour, lw=1.3 - 0.25 * rank, label=f"rank {rank + 1}")
    axes.set(ylim=(0, 1.05), yticks=[0, 0.5, 1])
    axes.set_ylabel(f"top {posteriors.shape[1]}\n{SHORT[part]}", color=MUTED)
    if part == next(part for part in PARTS if part in found):
        axes.legend(ncols=3, **ABOVE)


def draw_spectrogram(axes: Any, found: Findings) -> None:
    image = spectrogram_image(found)
    column = found["spectrogram"]["seconds_per_column"]
    first = CENTRE - column / 2
    extent = (first, first + image.shape[1] * column, 0, MELS)
    axes.imshow(image, origin="lower", aspect="auto", extent=extent, cmap="magma", vmin=0, vmax=255)
    axes.set_yticks(mel_ticks([500, 1000, 2000, 4000]), ["0.5", "1", "2", "4 kHz"])
    text = f"   “{found['text']}”" if found["text"] else ""
    axes.set_title(shorten(found["name"] + text, 110))


def draw_segments(axes: Any, segments: list[Any], kind: str, seconds: float, width: float) -> None:
    """Draw labels between their borders. A label that does not fit is left out."""
    inch = seconds / max(width - 1.2, 1)
    for start, end, label in segments:
        axes.axvline(start, color=RULE, lw=0.7)
        if end - start > inch * 0.085 * len(label) and label.lower() not in ("sil", ""):
            axes.text((start + end) / 2, 0.5, label, ha="center", va="center", fontsize=7.5, clip_on=True)
    style_row(axes, kind)


def draw_strip(axes: Any, clusters: list[list[int]], part: str, components: int) -> None:
    best = np.array([row[0] for row in clusters])
    colours = np.array([cluster_colour(k) for k in range(components)])
    first = CENTRE - 0.5 / FRAMES_PER_SECOND
    extent = (first, first + len(best) / FRAMES_PER_SECOND, 0, 1)
    axes.imshow(colours[best][None], aspect="auto", extent=extent, interpolation="nearest")
    style_row(axes, f"argmax {SHORT[part]}")


def style_row(axes: Any, name: str) -> None:
    axes.set(ylim=(0, 1), yticks=[])
    axes.set_ylabel(name, rotation=0, ha="right", va="center", color=MUTED)
    axes.tick_params(bottom=False)
    for side in axes.spines.values():
        side.set_visible(False)


def cluster_colour(cluster: int) -> tuple[float, float, float]:
    """A colour in which neighbouring cluster numbers differ in hue and lightness. explorer.js uses the same colours."""
    import colorsys

    return colorsys.hls_to_rgb(cluster * 0.61803398875 % 1, (0.42, 0.58, 0.74)[cluster % 3], 0.55)


def shorten(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"

"""A labelled corpus and a run trained on it, made once per test process."""

import functools
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

from sjepa.analysis.clusters import analyse_clusters, analyse_phones
from sjepa.analysis.entropy import analyse_entropy
from sjepa.analysis.restored_run import RestoredRun
from sjepa.analysis.speech import find_utterances, read_speech
from sjepa.analysis.style import save_findings
from sjepa.analysis.utterance import analyse_utterance, file_stem
from sjepa.evaluate.labelled import read_labelled
from sjepa.settings_file import from_toml
from sjepa.train.loop import pretrain

CONFIG = """
[encoder]
hidden_size = 32
layers = 3
heads = 2
inner_size = 64
conv_channels = 16
position_kernel = 16
position_groups = 2
[predictor]
heads = 2
inner_size = 64
positions = 100
[gmm]
reservoir = 400
[layer]
frames = 100
[batches]
seconds = 4.0
buckets = [1.0, 1.2]
max_seconds = 2.0
[phase1]
steps = 12
k = 8
lr = 1e-3
layer_check_every = 3
[phase2]
steps = 10
k = 12
lr = 1e-3
temperature = 3.0
layer_check_every = 2
ema_switch_every = 4
[train]
log_every = 1
checkpoint_every = 10
device = "cpu"
"""
PITCH = {"a": 120.0, "e": 180.0, "i": 260.0, "o": 90.0, "sil": 0.0}


def make_corpus(folder: Path) -> Path:
    """Tones that stand for phones, 120 ms each, by four speakers; with labels as a synthetic corpus has them."""
    draw, rows = np.random.default_rng(0), []
    for index in range(16):
        phones = draw.choice(list(PITCH), 10)
        times = np.arange(1920) / 16_000
        tones = [sum(np.sin(2 * np.pi * PITCH[p] * k * times) / k for k in (1, 2, 3)) * 0.1 for p in phones]
        samples = np.concatenate(tones) + 0.003 * draw.normal(size=19_200)
        name = f"speaker{index % 4}-{index:02d}"
        soundfile.write(folder / f"{name}.flac", samples.astype(np.float32), 16_000)
        spans = [(0.12 * place, 0.12 * (place + 1), str(phone)) for place, phone in enumerate(phones)]
        words = [(0.0, 0.48, "first"), (0.6, 1.2, "<i>second</i>")]
        row = {"id": name, "path": f"{name}.flac", "speaker": name[:8], "gender": "f", "text": "first <i>second</i>"}
        rows.append(row | {"phones": spans, "words": words})
    (folder / "labels.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@functools.cache
def corpus() -> Path:
    return make_corpus(Path(tempfile.mkdtemp(prefix="sjepa-corpus-")))


@functools.cache
def trained() -> Path:
    """A finished run with softened targets."""
    run = Path(tempfile.mkdtemp(prefix="sjepa-run-")) / "läuft"
    assert pretrain(from_toml(CONFIG, "tests"), corpus(), run, show=False)
    return run


@functools.cache
def findings() -> dict[str, Any]:
    """What the analyses of the run found, by the names of their files."""
    run = RestoredRun(trained())
    found = {"entropy": analyse_entropy(run, str(corpus()), 12), "clusters": analyse_clusters(trained())}
    found["clusters"]["phones"] = analyse_phones(run, read_labelled(corpus()), 8)
    for item in find_utterances(corpus(), [], 3, ""):
        found[file_stem(item.utterance)] = analyse_utterance(run, read_speech(item, 0.0, 20.0))
    return found


def keep_findings(run: Path, kind: str = "") -> Path:
    """Put the findings, or one kind of them, into a run folder, as `sjepa analyze` does."""
    for name, found in findings().items():
        if name.startswith(kind):
            save_findings(found, run / "analysis", name)
    return run

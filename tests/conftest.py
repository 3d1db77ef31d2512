"""Small corpora and configs for tests."""

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from sjepa.config import Config
from sjepa.data.loader import BatchConfig
from sjepa.model.encoder_config import EncoderConfig
from sjepa.model.predictor import PredictorConfig
from sjepa.targets.ema import EmaConfig
from sjepa.targets.fit import GmmConfig
from sjepa.targets.layer import LayerConfig

torch.set_num_threads(1)
pytest_plugins = ("served",)


def babble(seconds: float, seed: int) -> np.ndarray:
    """Something with the texture of speech: harmonics that change every 120 ms, and pauses."""
    rng = np.random.default_rng(seed)
    samples = int(seconds * 16_000)
    pieces, pitch = [], rng.uniform(90, 220)
    while sum(map(len, pieces)) < samples:
        t = np.arange(1920) / 16_000
        tones = sum(rng.normal() * np.sin(2 * np.pi * pitch * k * t) for k in range(1, 12))
        pieces.append(tones * rng.choice([0.0, 0.02, 0.03]) + 0.001 * rng.normal(size=len(t)))
    return np.concatenate(pieces)[:samples].astype(np.float32)


NO_DROPOUT = {"dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0}


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    for index in range(12):
        soundfile.write(folder / f"{index:02d}.wav", babble(1.0 + 0.2 * (index % 4), index), 16_000)
    return folder


@pytest.fixture(scope="session")
def labelled(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same audio with speakers, texts and phones; tests only read it."""
    folder = Path(shutil.copytree(corpus, tmp_path_factory.mktemp("labelled") / corpus.name))
    rows = ""
    for number, path in enumerate(sorted(corpus.glob("*.wav"))):
        phones = f'[[0.0, 0.5, "{"ab"[number % 2]}"], [0.5, 2.0, "c"]]'
        rows += f'{{"path": "{path.name}", "speaker": "s{number % 3}", "text": "a b", "phones": {phones}}}\n'
    (folder / "labels.jsonl").write_text(rows)
    return folder


def micro_config(**sections: object) -> Config:
    """A config that trains in a second or two; sections can be changed: `micro(phase2={"k": 5})`."""
    config = Config(
        encoder=EncoderConfig(
            hidden_size=32,
            layers=2,
            heads=2,
            inner_size=64,
            conv_channels=16,
            position_kernel=16,
            position_groups=2,
        ),
        predictor=PredictorConfig(heads=2, inner_size=64, positions=100),
        gmm=GmmConfig(reservoir=400),
        ema=EmaConfig(fast=0.9, slow=0.99),
        layer=LayerConfig(frames=100),
        batches=BatchConfig(seconds=4.0, buckets=(1.0, 1.2), max_seconds=2.0),
    )
    phase = {"steps": 6, "lr": 1e-3, "layer_check_every": 2, "ema_switch_every": 2}
    config = change(
        config, phase1=phase | {"k": 8}, phase2=phase | {"k": 12, "visible_loss_until": 2, "augment_until": 4}
    )
    config = change(config, train={"log_every": 1, "checkpoint_every": 3, "device": "cpu"})
    return change(config, **sections)


@pytest.fixture
def micro() -> Callable[..., Config]:
    return micro_config


@pytest.fixture(scope="session")
def finished_run(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole run of the micro config; tests only read it."""
    from sjepa.train.loop import pretrain

    run = tmp_path_factory.mktemp("runs") / "mine – ü"
    assert pretrain(micro_config(), corpus, run, show=False)
    return run


@pytest.fixture(scope="session")
def superb_data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Corpora of the SUPERB tasks in their true layouts; tests only read them."""
    import superb_corpora as corpora

    from sjepa.data.synthetic import VOICES

    root = tmp_path_factory.mktemp("superb")
    subsets = {"train-clean-100": 4, "dev-clean": 4, "test-clean": 2}
    return {
        "libri": corpora.librispeech(root / "libri", subsets, VOICES[:3]),
        "er": corpora.iemocap(root / "er", each=1),
        "sf": corpora.snips(root / "sf", each=3),
        "ks": corpora.speech_commands(root / "ks", words=("yes",)),
        "ic": corpora.fluent_commands(root / "ic"),
        "sid": corpora.voxceleb(root / "sid", speakers=2),
        "ravdess": corpora.ravdess(root / "ravdess", actors=5),
        "coffee": corpora.coffee(root / "coffee", orders=10),
    }


@pytest.fixture
def superb_copy(superb_data: dict[str, Path], tmp_path: Path) -> Callable[[str], Path]:
    """Make a copy of one of these corpora, which a test may change."""
    return lambda name: shutil.copytree(superb_data[name], tmp_path / name)


@pytest.fixture(scope="session")
def spoken_numbers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """LibriSpeech's dev-clean with numbers spoken by ten voices; tests only read it."""
    import superb_corpora as corpora

    from sjepa.data.synthetic import VOICES

    return corpora.librispeech(tmp_path_factory.mktemp("numbers"), {"dev-clean": 14}, VOICES[:10])


def change(config: Config, **sections: object) -> Config:
    """A config with some fields of some sections changed; phases are called phase1, phase2 and so on."""
    changes: dict[str, object] = {}
    phases = list(config.phases)
    for name, value in sections.items():
        if name.startswith("phase"):
            number = int(name.removeprefix("phase"))
            if number > len(phases):
                phases.append(phases[-1])
            phases[number - 1] = dataclasses.replace(phases[number - 1], **value)
        else:
            changes[name] = dataclasses.replace(getattr(config, name), **value) if isinstance(value, dict) else value
    return dataclasses.replace(config, **changes, phases=tuple(phases))

"""The s3prl setup of the tasks about classes and speakers for `s3prl_agreement.py`."""

import importlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import torch
from s3prl_sides import Side, corpora, make_class_side, make_expert, output_order, shorten

from sjepa.evaluate.superb import verification as widths
from sjepa.evaluate.superb.corpora.speech_commands import COMMANDS
from sjepa.evaluate.superb.records import Utterance
from sjepa.evaluate.superb.tasks import make_task
from sjepa.evaluate.superb.verification import VerificationTask
from sjepa.evaluate.upstream import Upstream

WIDTH = 64  # width of the x-vector, instead of 512
POOLED = {"projector_dim": 256, "select": "UtteranceLevel", "UtteranceLevel": {"pooling": "MeanPooling"}}


def make_er(place: Path, upstream: Upstream) -> Side:
    root = corpora.iemocap(place / "data")
    labelled: dict[int, list[dict[str, str]]] = {}
    for session in range(1, 6):
        labelled[session] = []
        for path in sorted((root / f"Session{session}" / "sentences").rglob("*.wav")):
            number = int(path.stem[-3:])  # three of each emotion in turn
            label = list(corpora.PROSODY)[number // 3].replace("exc", "hap")
            labelled[session].append({"path": str(path.relative_to(root)), "label": label})
    generator = np.random.default_rng(0)
    for held_out in labelled:
        rest = [item for session, items in labelled.items() if session != held_out for item in items]
        lists = {"train": [rest[i] for i in generator.permutation(len(rest))], "test": labelled[held_out]}
        for part, items in lists.items():
            file = root / "meta_data" / f"Session{held_out}" / f"{part}_meta_data.json"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps({"labels": {"neu": 0, "hap": 1, "ang": 2, "sad": 3}, "meta_data": items}))
    task = shorten(make_task("er", root), 4, 8, 1e-2)
    datarc = {"root": str(root), "meta_data": str(root / "meta_data"), "test_fold": "fold1", "pre_load": True}
    config = {"datarc": {**datarc, "valid_ratio": 0.2}, "modelrc": POOLED}
    expert = make_expert("emotion", upstream, place, config)

    def files(subset: Any) -> list[str]:
        listed = getattr(subset, "dataset", subset).meta_data
        return [str(root / listed[i]["path"]) for i in getattr(subset, "indices", range(len(listed)))]

    sets = {"train": expert.train_dataset, "dev": expert.dev_dataset, "test": expert.test_dataset}
    order = output_order(task, [["neutral", "happy", "angry", "sad"]])
    return make_class_side(
        task, upstream, expert, {name: files(each) for name, each in sets.items()}, sets, order=order
    )


def make_ks(place: Path, upstream: Upstream) -> Side:
    root = corpora.speech_commands(place / "data", words=COMMANDS)
    task = shorten(make_task("ks", root), 32, 1, 1e-2)
    roots = {
        "speech_commands_root": str(root / "speech_commands_v0.01"),
        "speech_commands_test_root": str(root / "speech_commands_test_set_v0.01"),
    }
    expert = make_expert("speech_commands", upstream, place, {"datarc": roots, "modelrc": POOLED})
    sets = {"train": expert.train_dataset, "dev": expert.dev_dataset, "test": expert.test_dataset}
    paths = {name: [str(path) for _, path in each.data] for name, each in sets.items()}
    names = importlib.import_module("s3prl.downstream.speech_commands.dataset").CLASSES
    return make_class_side(task, upstream, expert, paths, sets, order=output_order(task, [names]))


def make_ic(place: Path, upstream: Upstream) -> Side:
    root = corpora.fluent_commands(place / "data")
    task = shorten(make_task("ic", root), 32, 1, 1e-2)
    folder = root / "fluent_speech_commands_dataset"
    expert = make_expert("fluent_commands", upstream, place, {"datarc": {"file_path": str(folder)}, "modelrc": POOLED})
    sets = {"train": expert.train_dataset, "dev": expert.dev_dataset, "test": expert.test_dataset}
    paths = {name: [str(folder / path) for path in each.df["path"]] for name, each in sets.items()}
    slots = [[value for value in each if isinstance(value, str)] for each in expert.Sy_intent.values()]
    return make_class_side(task, upstream, expert, paths, sets, order=output_order(task, slots))


def make_sid(place: Path, upstream: Upstream) -> Side:
    """Use as many speakers as VoxCeleb1, because s3prl's head has a fixed size. A speaker is a chord of two tones."""
    root, lines = place / "data", []
    generator = np.random.default_rng(0)
    for speaker in range(1251):
        tones = generator.uniform(100, 3000, 2)
        for number, part in enumerate((1, 2, 3)[: 3 if speaker < 20 else 1]):
            name = f"id{10001 + speaker}/video{number}/00001.wav"
            times = np.arange(int(generator.integers(3000, 6000))) / 16_000
            samples = 0.2 * np.sin(2 * np.pi * tones[:, None] * times).sum(0) + 0.01 * generator.normal(size=len(times))
            (root / "dev" / "wav" / name).parent.mkdir(parents=True)
            soundfile.write(root / "dev" / "wav" / name, samples, 16_000)
            lines.append(f"{part} {name}\n")
    (root / "iden_split.txt").write_text("".join(lines))
    task = shorten(make_task("sid", root), 8, 4, 1e-2)
    dataset = importlib.import_module("s3prl.downstream.voxceleb1.dataset")
    dataset.CACHE_PATH = str(place / "cache")
    datarc = {"file_path": str(root), "meta_data": str(root / "iden_split.txt"), "max_timestep": 128_000}
    expert = make_expert("voxceleb1", upstream, place, {"datarc": datarc, "modelrc": POOLED})
    sets = {"train": expert.train_dataset, "dev": expert.dev_dataset, "test": expert.test_dataset}
    paths = {name: list(each.dataset) for name, each in sets.items()}
    order = output_order(task, [[f"id{10001 + speaker}" for speaker in range(1251)]])
    return make_class_side(task, upstream, expert, paths, sets, order=order)


def make_asv(place: Path, upstream: Upstream) -> Side:
    root = corpora.verification(place / "data")
    task = shorten(make_task("asv", root), 10, 1, 1e-3)
    assert isinstance(task, VerificationTask)
    widths.WIDTH, widths.POOLED = WIDTH, 2 * WIDTH
    dataset = importlib.import_module("s3prl.downstream.sv_voxceleb1.dataset")
    dataset.__file__ = str(place / "dataset.py")  # it stores lengths in the same folder
    dataset.find_files = lambda folder: sorted(str(path) for path in Path(folder).rglob("*.wav"))
    dataset.Parallel = lambda n_jobs: list
    trials = root / "voxceleb1_test_v2.txt"
    (place / "dev.txt").write_text("")
    datarc = {
        "file_path": str(root),
        "vad_config": {"min_sec": 32_000},
        "train_meta_data": "",
        "dev_meta_data": str(place / "dev.txt"),
        "test_meta_data": str(trials),
        "max_timestep": 128_000,
    }
    modelrc = {
        "module": "XVector",
        "input_dim": WIDTH,
        "agg_module": "SP",
        "utter_module": "UtteranceExtractor",
        "module_config": {"XVector": {"agg_dim": 2 * WIDTH, "dropout_p": 0.0, "batch_norm": False}},
        "ObjectiveLoss": "AMSoftmaxLoss",
        "LossConfig": {"AMSoftmaxLoss": {"s": 30.0, "m": 0.4}},
    }
    dataset.delayed = lambda call: call
    expert = make_expert("sv_voxceleb1", upstream, place, {"datarc": datarc, "modelrc": modelrc})
    train = {str(path): index for index, path in enumerate(expert.train_dataset.dataset)}
    tested = {str(path): index for index, path in enumerate(expert.test_dataset.dataset)}

    def others(mode: str, utterances: Sequence[Utterance]) -> tuple[Any, ...]:
        if mode == "test":
            return ([expert.test_dataset[tested[str(u.path)]][1] for u in utterances],)
        found = [expert.train_dataset[train[str(u.path)]] for u in utterances]
        return [name for _, name, _ in found], [label for _, _, label in found]

    def samples(utterance: Utterance) -> np.ndarray:
        if str(utterance.path) in train:
            waveform: np.ndarray = expert.train_dataset[train[str(utterance.path)]][0]
        else:
            waveform = expert.test_dataset[tested[str(utterance.path)]][0]
        return waveform

    return Side(
        task,
        upstream,
        expert,
        others,
        {"eer": "eer"},
        {"train": list(train), "test": list(tested)},
        samples,
        optimizer_config={"name": "TorchOptim", "torch_optim_name": "AdamW"},
        scaled_down=f"layers of {WIDTH} and {2 * WIDTH} instead of 512 and 1500; 1 batch per step instead of 5",
        dtype=torch.float64,
    )


def make_sd(place: Path, upstream: Upstream) -> Side:
    root = corpora.libri2mix(place / "data", each=10)
    task = shorten(make_task("sd", root), 8, 1, 1e-3)
    config = {
        "datarc": {"chunk_size": 2000, "subsampling": 1, "label_delay": 0, "num_speakers": 2, "rate": 16_000},
        "loaderrc": {
            "num_workers": 0,
            "train_batchsize": 8,
            "eval_batchsize": 1,
            **{f"{part}_dir": str(root / part) for part in ("train", "dev", "test")},
        },
        "scorerc": {"save_predictions": True},
        "modelrc": {"rnn_layers": 1, "hidden_size": 512},
    }
    expert = make_expert("diarization", upstream, place, config)
    for part in ("train", "dev", "test"):
        expert.get_dataloader(part)
    train = {(rec, start * 320): index for index, (rec, start, _) in enumerate(expert.train_dataset.chunk_indices)}

    def chunk(mode: str, utterance: Utterance) -> tuple[np.ndarray, np.ndarray]:
        if mode == "train":
            data, label = expert.train_dataset[train[utterance.name, utterance.start]]
        else:
            waves, labels, _ = expert.test_dataset[expert.test_dataset.rec_list.index(utterance.name)]
            data, label = waves[0], labels[0]
        return data.astype(np.float32), label.astype(np.float32)

    def others(mode: str, utterances: Sequence[Utterance]) -> tuple[Any, ...]:
        labels = [chunk(mode, u)[1] for u in utterances]
        return labels, np.array([len(label) for label in labels]), utterances[0].name

    def samples(utterance: Utterance) -> np.ndarray:
        return chunk("train" if (utterance.name, utterance.start) in train else "test", utterance)[0]

    sets = {"train": expert.train_dataset, "dev": expert.dev_dataset, "test": expert.test_dataset}
    paths = {name: [str(path) for path in each.data.wavs.values()] for name, each in sets.items()}
    rename = {"der": "frame_der", "acc": "frame_accuracy"}
    return Side(task, upstream, expert, others, rename, paths, samples, scaled_down="1 batch per step instead of 4")

"""The s3prl setup of each task for `s3prl_agreement.py`: a small corpus, configuration and datasets."""

import importlib
import itertools
import json
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import torch
from s3prl_sides import Side, make_class_side, make_expert, make_sequence_side, output_order, shorten

from sjepa.data.synthetic import VOICES
from sjepa.evaluate.superb import verification as widths
from sjepa.evaluate.superb.corpora.speech_commands import COMMANDS
from sjepa.evaluate.superb.queries import LayerSearch, QueryTask
from sjepa.evaluate.superb.records import Utterance
from sjepa.evaluate.superb.sequences import SequenceTask
from sjepa.evaluate.superb.tasks import make_task
from sjepa.evaluate.superb.term_weighted_value import maximum_term_weighted_value
from sjepa.evaluate.superb.verification import VerificationTask
from sjepa.evaluate.upstream import Upstream

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
import superb_corpora as corpora

WIDTH = 64  # width of recurrent heads (instead of 1024) and of the x-vector (instead of 512)
POOLED = {"projector_dim": 256, "select": "UtteranceLevel", "UtteranceLevel": {"pooling": "MeanPooling"}}
RECURRENT = {
    "total_rate": -1,
    "module": "LSTM",
    "bidirection": True,
    "dim": [WIDTH, WIDTH],
    "dropout": [0.2, 0.2],
    "layer_norm": [False, False],
    "proj": [False, False],
    "sample_rate": [1, 1],
    "sample_style": "concat",
}
# s3prl's characters, ordered by frequency.
CHARACTERS = "|ETAONIHSRDLUMCWFGYPBVK'XJQZ"


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


def make_librispeech(place: Path) -> Path:
    return corpora.librispeech(place / "data", {"train-clean-100": 8, "dev-clean": 2, "test-clean": 4}, VOICES[:6])


def make_asr(place: Path, upstream: Upstream) -> Side:
    root = make_librispeech(place)
    task = make_task("asr", root)
    assert isinstance(task, SequenceTask)
    task = shorten(replace(task, recurrent=WIDTH, augment=None), 16, 1, 1e-2)
    (place / "char.dict").write_text("".join(f"{c} {1000 - i}\n" for i, c in enumerate(CHARACTERS)))
    datarc = {
        "dict_path": str(place / "char.dict"),
        "zero_infinity": True,
        "decoder_args": {"decoder_type": "None"},
        "train": ["train-clean-100"],
        "test-clean": ["test-clean"],
        "libri_root": str(root / "LibriSpeech"),
        "bucket_file": str(place / "lengths"),
    }
    modelrc = {"project_dim": WIDTH, "select": "RNNs", "RNNs": RECURRENT}
    expert = make_expert("asr", upstream, place, {"datarc": datarc, "modelrc": modelrc})
    (place / "lengths").mkdir()
    fold = task.folds[0]
    for subset, part in (("train-clean-100", fold.train), ("test-clean", fold.test)):
        rows = [f"{u.path.relative_to(root / 'LibriSpeech')},{soundfile.info(u.path).frames}\n" for u in part]
        (place / "lengths" / f"{subset}.csv").write_text("file_path,length\n" + "".join(rows))
    dataset = importlib.import_module("s3prl.downstream.asr.dataset").SequenceDataset
    labels = {
        subset: dataset(split, 2, expert.dictionary, **datarc).Y
        for split, subset in (("train", "train-clean-100"), ("test-clean", "test-clean"))
    }
    return make_sequence_side(
        task,
        upstream,
        expert,
        lambda u: labels[u.path.parts[-4]][u.path.stem].numpy(),
        {"wer": "wer", "uer": "cer"},
        order=[expert.dictionary.symbols.index(symbol) for symbol in task.symbols.symbols],
        percent=1.0,
        modes={"train": "train", "test": "test-clean"},
        scaled_down=f"recurrent layers of {WIDTH} instead of 1024",
    )


def make_ctc_expert(place: Path, upstream: Upstream, task: SequenceTask, text: dict[str, str], **model: Any) -> Any:
    config = {
        "corpus": {"name": "agreement"},
        "text": text,
        "model": {"zero_infinity": True, **model},
        "metric": ["per"] if text["mode"] == "word" else ["slot_type_f1", "slot_value_cer"],
        "metric_higher_better": text["mode"] != "word",
    }
    return make_expert("ctc", upstream, place, config)


def make_pr(place: Path, upstream: Upstream) -> Side:
    root = make_librispeech(place)
    lexicon = place / "lexicon.txt"
    lexicon.write_text("ONE W AH1 N\nTWO T UW1\nTHREE TH R IY1\nFOUR F AO1 R\nFIVE F AY1 V\nSIX S IH1 K S\n")
    task = make_task("pr", root, lexicons=[lexicon])
    assert isinstance(task, SequenceTask)
    (place / "phoneme.txt").write_text("".join(f"{phone}\n" for phone in task.symbols.symbols[3:]))
    text = {"mode": "word", "vocab_file": str(place / "phoneme.txt")}
    task = shorten(task, 16, 2, 1e-2)
    expert = make_ctc_expert(place, upstream, task, text, project_dim=256, select="FrameLevel")
    return make_sequence_side(task, upstream, expert, lambda u: expert.tokenizer.encode(str(u.label)), {"per": "per"})


def make_sf(place: Path, upstream: Upstream) -> Side:
    root = corpora.snips(place / "data", each=12)
    task = make_task("sf", root)
    assert isinstance(task, SequenceTask)
    # A random encoder does not generalise to new voices. Without any slot found, metrics would be meaningless.
    fold = replace(task.folds[0], test=task.folds[0].train[::2])
    task = shorten(replace(task, folds=[fold], recurrent=WIDTH, augment=None), 32, 1, 3e-3)
    marks = next(i for i, symbol in enumerate(task.symbols.symbols) if symbol.startswith("B-"))
    (place / "character.txt").write_text("".join(f"{symbol}\n" for symbol in task.symbols.symbols[3:marks]))
    lines = (root / "SNIPS" / "slots.txt").read_text().strip()
    (place / "slots.txt").write_text(lines)  # s3prl treats an empty last line as a slot
    text = {
        "mode": "character-slot",
        "vocab_file": str(place / "character.txt"),
        "slots_file": str(place / "slots.txt"),
    }
    expert = make_ctc_expert(place, upstream, task, text, project_dim=WIDTH, select="RNNs", RNNs=RECURRENT)
    spoken = {}
    for line in (root / "SNIPS" / "all.iob.snips.txt").read_text().splitlines():
        name, rest = line.split(" ", 1)
        words, tags = rest.split("\t")
        spoken[name] = f"{words.upper()}\t{tags}"
    return make_sequence_side(
        task,
        upstream,
        expert,
        lambda u: expert.tokenizer.encode(spoken[u.name]),
        {"slot_type_f1": "slot_type_f1", "slot_value_cer": "slot_value_cer"},
        scaled_down=f"recurrent layers of {WIDTH} instead of 1024; tested on training utterances",
    )


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
        scaled_down=f"layers of {WIDTH} and {2 * WIDTH} instead of 512 and 1500; 1 batch a step instead of 5",
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
    return Side(task, upstream, expert, others, rename, paths, samples, scaled_down="1 batch a step instead of 4")


def compare_queries(place: Path, upstream: Upstream) -> dict[str, Any]:
    """Compare the scores of all queries and documents at each layer, and the resulting MTWV."""
    import xml.etree.ElementTree as ElementTree

    root = corpora.quesst(place / "data", documents=16)
    task = make_task("qbe", root)
    assert isinstance(task, QueryTask)
    fold = task.folds[0]
    search = LayerSearch(task, upstream, place / "ours")
    search.measure()
    layers = list(range(upstream.states))
    states = search.features([*fold.test, *fold.train], layers)
    ours = search.detect(fold.train, fold.test, layers)
    config = {
        "max_workers": 1,
        "feature_normalization": True,
        "silence_frame": None,
        "datarc": {"dataset_root": str(root / "quesst14Database"), "num_workers": 0, "batch_size": 1},
        "dtwrc": {"dist_method": "cosine_exp", "minmax_norm": True, "step_pattern": "asymmetric", "subsequence": True},
    }
    expert = make_expert("quesst14_dtw", upstream, place, config)
    expert.get_dataloader("test")
    names = [path.stem for path in expert.test_dataset.data]
    largest = 0.0
    values = {}
    for layer in layers:
        records: dict[str, list[Any]] = defaultdict(list)
        for name, each in zip(names, states, strict=True):
            expert("test", [each[layer]], [name], records)
        expert.log_records("test", records)
        tree = ElementTree.parse(place / "theirs" / "benchmark.stdlist.xml").getroot()
        theirs = {
            str(query.get("termid")): {str(term.get("file")): float(str(term.get("score"))) for term in query}
            for query in tree
        }
        pairs = itertools.product([u.name for u in fold.test], [u.name for u in fold.train])
        largest = max(largest, *(abs(ours[layer][query][name] - theirs[query][name]) for query, name in pairs))
        both = (maximum_term_weighted_value(scores, task.truths["test"]) for scores in (ours[layer], theirs))
        values[f"mtwv, layer {layer}"] = dict(zip(("ours", "s3prl"), both, strict=True))
    same = names == [u.name for u in (*fold.test, *fold.train)]
    apart = max(abs(pair["ours"] - pair["s3prl"]) for pair in values.values())
    return {
        "steps": 0,
        "largest_difference_of_scores": largest,
        "test_metrics": values,
        "same_parts": same,
        "agrees": bool(same and largest < 1e-3 and apart < 1e-2),
        "scaled_down": "",
    }


CASES: dict[str, Callable[[Path, Upstream], Side]] = {
    "pr": make_pr,
    "asr": make_asr,
    "ks": make_ks,
    "sid": make_sid,
    "asv": make_asv,
    "sd": make_sd,
    "ic": make_ic,
    "sf": make_sf,
    "er": make_er,
}

"""The s3prl setup of ASR, phoneme recognition and slot filling for `s3prl_agreement.py`."""

import importlib
import itertools
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import torch
from s3prl_sides import Side, corpora, make_expert, make_sequence_side, shorten

from sjepa.data.synthetic import VOICES, speak
from sjepa.evaluate.superb.corpora.snips import SNIPS_SPEAKERS
from sjepa.evaluate.superb.sequences import SequenceTask
from sjepa.evaluate.superb.specaugment import FEATURES, SpecAugment
from sjepa.evaluate.superb.tasks import make_task
from sjepa.evaluate.upstream import Upstream

WIDTH = 64  # width of recurrent heads, instead of 1024
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
        further=lambda: {"specaugment": compare_specaugment()},
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
    root = write_snips(place / "data")
    task = make_task("sf", root)
    assert isinstance(task, SequenceTask)
    # Two new voices and half of the training utterances: a random encoder generalises badly, and metrics near 0 and 100
    # compare little.
    fold = replace(task.folds[0], test=[*task.folds[0].test, *task.folds[0].train[::2]])
    task = shorten(replace(task, folds=[fold], recurrent=WIDTH, augment=None), 32, 1, 1e-2)
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
    encoded = {u.name: expert.tokenizer.encode(spoken[u.name]) for u in fold.utterances}
    return make_sequence_side(
        task,
        upstream,
        expert,
        lambda u: encoded[u.name],
        {"slot_type_f1": "slot_type_f1", "slot_value_cer": "slot_value_cer"},
        scaled_down=f"recurrent layers of {WIDTH} instead of 1024; 18 of 30 tested utterances are in training",
        dtype=torch.float64,
        steps=100,
        further=lambda: {
            "specaugment": compare_specaugment(),
            "labels": compare_labels(task, encoded),
            "metrics_of_damaged_sentences": compare_slot_metrics(task, expert.tokenizer, list(encoded.values())),
        },
    )


def write_snips(root: Path) -> Path:
    """Audio SNIPS with slots of several words, repeated slots, punctuation, `&`, and sentences without a slot."""
    commands = [
        (("play", "abba"), ("O", "artist")),
        (("play", "the", "who", "in", "rome"), ("O", "artist", "artist", "O", "city")),
        (("from", "rome", "to", "new", "york"), ("O", "city", "O", "city", "city")),
        (("well", ",", "play", "sade", "&", "abba"), ("O", "O", "O", "artist", "artist", "artist")),
        (("paris", "today", "-", "please"), ("city", "date", "O", "O")),
        (("good", "morning"), ("O", "O")),
    ]
    lines = []
    speakers = {"train": SNIPS_SPEAKERS["train"][:6], "valid": ["Amy"], "test": ["Brian", "Emma"]}
    voices = itertools.cycle(VOICES)
    for subset, names in speakers.items():
        for speaker in names:
            voice = next(voices)
            for number, (words, tags) in enumerate(commands):
                name = f"{speaker}-snips-{subset}-{number}"
                text = " ".join(words).replace(" ,", "").replace(" -", "").replace("&", "and")
                corpora.write(root / "SNIPS" / subset / f"{name}.wav", speak(text, voice))
                lines.append(f"{name} BOS {' '.join(words)} EOS\tO {' '.join(tags)} Intent\n")
    (root / "SNIPS" / "all.iob.snips.txt").write_text("".join(lines))
    (root / "SNIPS" / "slots.txt").write_text("O\nartist\ncity\ndate\n")
    return root


def compare_labels(task: SequenceTask, encoded: dict[str, list[int]]) -> dict[str, Any]:
    """Compare the numbers of all labels with those of s3prl's tokenizer."""
    same = sum(task.numbers[u.label] == encoded[u.name] for u in task.folds[0].utterances)
    return {"labels": len(task.folds[0].utterances), "equal": same, "agrees": same == len(task.folds[0].utterances)}


def compare_slot_metrics(task: SequenceTask, tokenizer: Any, sentences: Sequence[list[int]]) -> dict[str, Any]:
    """Compare decoding and slot metrics of sentences with random deletions, insertions and replacements of symbols."""
    theirs = importlib.import_module("s3prl.downstream.ctc.metric")
    generator = random.Random(0)
    symbols, sets = range(2, len(task.symbols.symbols)), 200
    apart, lowest, highest = 0.0, 100.0, 0.0
    for number in range(sets):
        originals = generator.choices(sentences, k=20)
        damaged = []
        for tokens in originals:
            kept = [token for token in tokens[:-1] if generator.random() > 0.5 * number / sets]
            for _ in range(generator.randrange(4)):
                kept.insert(generator.randint(0, len(kept)), generator.choice(symbols))
            damaged.append(kept)
        ours = [[task.symbols.transcribe(tokens) for tokens in each] for each in (damaged, originals)]
        others = [[tokenizer.decode(tokens) for tokens in each] for each in (damaged, originals)]
        for metric in task.metrics:
            assert metric.score is not None
            value = metric.score(*ours)
            apart = max(apart, abs(value - 100 * getattr(theirs, metric.name)(*others)))
            if metric.name == "slot_type_f1":
                lowest, highest = min(lowest, value), max(highest, value)
    return {
        "sets_of_20": sets,
        "range_of_slot_type_f1": [lowest, highest],
        "largest_difference": apart,
        "agrees": apart < 1e-9,
    }


def compare_specaugment() -> dict[str, Any]:
    """Compare SpecAugment with s3prl's, with the settings of its `asr` and `snips`, on the same random numbers."""
    theirs = importlib.import_module("s3prl.downstream.specaug").SpecAug(
        adaptive=False,
        adaptive_number_ratio=0.04,
        adaptive_size_ratio=0.04,
        max_n_time_masks=20,
        time_warp_window=5,
        time_mask_width_range=[0, 40],
        freq_mask_width_range=[0, 50],
        num_freq_mask=4,
        num_time_mask=2,
    )
    batches, apart, masked = 50, 0.0, []
    for seed in range(batches):
        lengths = np.random.default_rng(seed).integers(8, 400, 4).tolist()
        features = [torch.randn(length, FEATURES) for length in lengths]
        padded = torch.nn.utils.rnn.pad_sequence(features, batch_first=True)
        ours = SpecAugment()(padded.clone(), torch.tensor(lengths), torch.Generator().manual_seed(seed))
        torch.manual_seed(seed)
        expected, _ = theirs(features)
        for found, wanted in zip(ours, expected, strict=True):
            apart = max(apart, float((found[: len(wanted)] - wanted).abs().max()))
            masked.append(float((wanted == 0).float().mean()))
    return {
        "batches_of_4": batches,
        "masked_percent": round(100 * float(np.mean(masked)), 1),
        "largest_difference": apart,
        "agrees": apart < 1e-5,
    }

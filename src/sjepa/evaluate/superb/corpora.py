"""Readers of the classification and slot corpora in their own layouts."""

import csv
import hashlib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from sjepa.audio.io import EXTENSIONS, SAMPLE_RATE
from sjepa.data.layouts import Item
from sjepa.data.layouts.manifest import NAME, read
from sjepa.data.storage import is_url
from sjepa.errors import UserError
from sjepa.evaluate.superb.records import Fold, Utterance, by_group, folder_in, require_audio, say_unlabelled
from sjepa.evaluate.superb.text import slot_sentence
from sjepa.progress import say

EMOTIONS = {"neu": "neutral", "hap": "happy", "exc": "happy", "ang": "angry", "sad": "sad"}
SNIPS_SPEAKERS = {
    "train": ["Ivy", "Joanna", "Joey", "Justin", "Kendra", "Kimberly", "Matthew", "Salli"],
    "valid": ["Aditi", "Amy", "Geraint", "Nicole"],
    "test": ["Brian", "Emma", "Raveena", "Russell"],
}
COMMANDS = ["yes", "no", "up", "down", "left", "right", "on", "off", "stop", "go"]
UNKNOWN, SILENCE = "_unknown_", "_silence_"
VOXCELEB_CROP = 8 * SAMPLE_RATE
INTENT_SLOTS = ("action", "object", "location")


def iemocap(root: Path) -> list[Fold]:
    """Four emotions, a fold a session; 20 % of the other sessions select."""
    sessions = {}
    for number in range(1, 6):
        folder = folder_in(root, f"Session{number}", f"IEMOCAP_full_release/Session{number}")
        sessions[number] = list(iemocap_session(folder))
        if not sessions[number]:
            raise UserError(f"{folder} has no labels of the four emotions in dialog/EmoEvaluation")
        require_audio([u.path for u in sessions[number]], f"{folder}/dialog/EmoEvaluation")
    folds = []
    for held_out, test in sessions.items():
        rest = [u for number, part in sessions.items() if number != held_out for u in part]
        order = np.random.default_rng(0).permutation(len(rest))
        cut = int(0.8 * len(rest))
        folds.append(
            Fold(
                f"Session{held_out}",
                [rest[i] for i in sorted(order[:cut])],
                [rest[i] for i in sorted(order[cut:])],
                test,
            )
        )
    return folds


def iemocap_session(folder: Path) -> Iterable[Utterance]:
    for file in sorted((folder / "dialog" / "EmoEvaluation").glob("*.txt")):
        for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
            # [6.2901 - 8.2357]	Ses01F_impro01_F000	neu	[2.5000, 2.5000, 2.5000]
            fields = line.split("\t")
            if line.startswith("[") and len(fields) >= 3 and fields[2] in EMOTIONS:
                name = fields[1]
                path = folder / "sentences" / "wav" / name.rsplit("_", 1)[0] / f"{name}.wav"
                yield Utterance(name, path, (EMOTIONS[fields[2]],), name[:5] + name.rsplit("_", 1)[1][0])


def snips(root: Path) -> list[Fold]:
    """Audio SNIPS by its speakers; labels are sentences with slot marks."""
    root = root / "SNIPS" if (root / "SNIPS").is_dir() else root
    transcripts = root / "all.iob.snips.txt"
    if not transcripts.is_file():
        raise UserError(f"there is no {transcripts}: lines of an id, BOS words EOS, a tab, and a tag for each")
    sentences = {}
    for number, line in enumerate(transcripts.read_text(encoding="utf-8").splitlines(), 1):
        # Amy-snips-test-0 BOS play sade EOS<tab>O O artist PlayMusic
        if "\t" in line:
            spoken, tags = (side.split() for side in line.split("\t", 1))
            if len(spoken) != 1 + len(tags):
                raise UserError(f"{transcripts} line {number}: there is not one tag for each word")
            sentences[spoken[0]] = slot_sentence(spoken[2:-1], tags[1:-1])
    parts = []
    for subset, speakers in SNIPS_SPEAKERS.items():
        folder = folder_in(root, subset)
        audio = {path.stem: path for path in sorted(folder.rglob("*")) if path.suffix in EXTENSIONS}
        audio = {name: path for name, path in audio.items() if name.split("-")[0] in speakers}
        wanted = [n for n in sentences if n.split("-")[0] in speakers and n.split("-")[2:3] == [subset]]
        require_audio([audio.get(name, folder / f"{name}.wav") for name in wanted], str(transcripts))
        unlabelled = sorted(audio.keys() - sentences.keys())
        if unlabelled:  # s3prl leaves these out too
            say(f"audio without labels in {folder}: {len(unlabelled)} left out, first {unlabelled[0]}")
        named = [name for name in audio if name in sentences]
        parts.append([Utterance(name, audio[name], sentences[name], name.split("-")[0]) for name in named])
    return [Fold("Audio SNIPS", *parts)]


def speech_commands(root: Path) -> list[Fold]:
    """Speech Commands v0.01, 12 classes: train and dev by the hash of the speaker, test from its own folder."""
    folder = folder_in(root, "speech_commands_v0.01")
    test_folder = folder_in(root, "speech_commands_test_set_v0.01")
    parts: dict[str, list[Utterance]] = {"train": [], "dev": []}
    for path in sorted(folder.glob("*/*.wav")):
        word = path.parent.name
        share = hash_share(path.name)
        if word != "_background_noise_" and not 10 <= share < 20:  # that tenth is the corpus's older test part
            label = word if word in COMMANDS else UNKNOWN
            name = f"{word}/{path.stem}"
            parts["dev" if share < 10 else "train"].append(Utterance(name, path, (label,), path.name.split("_")[0]))
    noises = sorted((folder / "_background_noise_").glob("*.wav"))
    silence = [Utterance(f"{SILENCE}/{path.stem}", path, (SILENCE,), crop=SAMPLE_RATE) for path in noises]
    test = [
        Utterance(f"{path.parent.name}/{path.stem}", path, (path.parent.name,))
        for path in sorted(test_folder.glob("*/*.wav"))
    ]
    odd = {u.label[0] for u in test} - {*COMMANDS, UNKNOWN, SILENCE}
    if odd:
        raise UserError(f"{test_folder} has a folder {min(odd)}: it should hold the 12 classes only")
    return [Fold("Speech Commands v0.01", parts["train"] + silence, parts["dev"] + silence, test)]


def hash_share(file_name: str) -> float:
    """Place of a speaker between 0 and 100, as the corpus's README computes it."""
    largest = 2**27 - 1
    speaker = re.sub(r"_nohash_.*$", "", file_name)
    return (int(hashlib.sha1(speaker.encode()).hexdigest(), 16) % (largest + 1)) * (100.0 / largest)


def fluent_commands(root: Path) -> list[Fold]:
    """Fluent Speech Commands: action, object and location of each utterance."""
    if (root / "fluent_speech_commands_dataset").is_dir():
        root = root / "fluent_speech_commands_dataset"
    parts = []
    for subset in ("train", "valid", "test"):
        table = root / "data" / f"{subset}_data.csv"
        if not table.is_file():
            raise UserError(f"there is no {table}: Fluent Speech Commands has one for train, valid and test")
        with table.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        for number, row in enumerate(rows, 2):
            missing = [column for column in ("path", "speakerId", *INTENT_SLOTS) if row.get(column) is None]
            if missing:
                raise UserError(f"{table} line {number}: there is no {missing[0]}")
        utterances = [
            Utterance(row["path"], root / row["path"], tuple(row[slot] for slot in INTENT_SLOTS), row["speakerId"])
            for row in rows
        ]
        require_audio([u.path for u in utterances], str(table))
        parts.append(utterances)
    say_unlabelled(root, [u.path for part in parts for u in part])
    return [Fold("Fluent Speech Commands", *parts)]


def voxceleb(root: Path) -> list[Fold]:
    """VoxCeleb1's identification split: 1 trains, 2 selects, 3 tests."""
    lists = [root / name for name in ("iden_split.txt", "veri_test_class.txt")]
    split = next((file for file in lists if file.is_file()), None)
    if split is None:
        raise UserError(f"there is no {lists[0]}: lines of 1, 2 or 3 and a path such as id10001/VIDEO/00001.wav")
    folders = [folder for folder in (root / "dev" / "wav", root / "test" / "wav", root / "wav") if folder.is_dir()]
    if not folders:
        raise UserError(f"{root} has no audio: looked for dev/wav, test/wav and wav")
    parts: dict[str, list[Utterance]] = {"1": [], "2": [], "3": []}
    for number, line in enumerate(split.read_text(encoding="utf-8").split("\n"), 1):
        if line.strip():
            part, *names = line.split()
            if part not in parts or len(names) != 1:
                raise UserError(f"{split} line {number}: {line.strip()!r} is not 1, 2 or 3 and a path")
            (name,) = names
            path = next((folder / name for folder in folders if (folder / name).is_file()), folders[0] / name)
            speaker = name.split("/")[0]
            parts[part].append(Utterance(name, path, (speaker,), speaker, crop=VOXCELEB_CROP if part == "1" else 0))
    paths = [u.path for part in parts.values() for u in part]
    require_audio(paths, str(split))
    say_unlabelled(root, paths)
    return [Fold("VoxCeleb1", *parts.values())]


def manifest(root: Path, label: str) -> list[tuple[Item, Any]]:
    """What `manifest.jsonl` lists, read as an index reads it, each a whole file with the label that is asked for."""
    file = root / NAME
    if not file.is_file():
        raise UserError(f"there is no {file}: one JSON object an utterance")
    found = []
    for item, line in read(str(file)):
        if isinstance(item, str):
            raise UserError(item)
        if item.offset or item.place.size or is_url(item.place.path):
            raise UserError(f"{file}: {item.id} is not a file of its own, which this task needs")
        if label not in line:
            raise UserError(f"{file}: {item.id} has no {label}")
        found.append((item, line[label]))
    paths = [Path(item.place.path) for item, _ in found]
    require_audio(paths, str(file))
    say_unlabelled(root, paths)
    return found


def ravdess(root: Path) -> list[Fold]:
    """RAVDESS speech, eight acted emotions, in five folds by actor: one tests, the next selects."""
    rows = manifest(root, "emotion")
    for item, emotion in rows:
        if not isinstance(emotion, str) or not emotion:
            raise UserError(f"{root / NAME}: {item.id} has the emotion {emotion!r}, which is not a name")
    utterances = [Utterance(item.id, Path(item.place.path), (emotion,), item.speaker) for item, emotion in rows]
    groups = by_group(utterances, (0.2,) * 5, seed=0, what="RAVDESS")
    folds = []
    for index, test in enumerate(groups):
        dev = (index + 1) % 5
        train = [u for other, group in enumerate(groups) if other not in (index, dev) for u in group]
        folds.append(Fold(f"actors {index + 1} of 5", train, groups[dev], test))
    return folds


def coffee(root: Path) -> list[Fold]:
    """Spoken drink orders: a value, or none, for each of the slots. Speakers are not known, so the split is random."""
    rows = manifest(root, "slots")
    for item, slots in rows:
        if not isinstance(slots, dict) or not all(isinstance(value, str) for value in slots.values()):
            raise UserError(f"{root / NAME}: {item.id} has the slots {slots!r}, which are not names and their values")
    kinds = sorted({kind for _, slots in rows for kind in slots})
    utterances = [
        Utterance(item.id, Path(item.place.path), tuple(slots.get(kind, "").strip() for kind in kinds))
        for item, slots in rows
    ]
    order = np.random.default_rng(0).permutation(len(utterances))
    train, dev, test = np.split(order, [int(0.7 * len(order)), int(0.8 * len(order))])
    return [Fold("coffee orders", *([utterances[i] for i in sorted(part)] for part in (train, dev, test)))]

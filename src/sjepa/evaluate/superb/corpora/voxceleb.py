"""VoxCeleb1: speaker identification and verification."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from sjepa.audio.io import SAMPLE_RATE
from sjepa.errors import UserError
from sjepa.evaluate.superb.records import Fold, Utterance, report_unlabelled, require_audio
from sjepa.evaluate.superb.sound import Sound
from sjepa.files import read_text

VOXCELEB_CROP = 8 * SAMPLE_RATE
TRIALS = ("voxceleb1_test_v2.txt", "veri_test2.txt")


class Trial(NamedTuple):
    """Two utterances, and whether they have the same speaker."""

    same: bool
    first: str
    second: str


def find_audio_folders(root: Path) -> list[Path]:
    folders = [folder for folder in (root / "dev" / "wav", root / "test" / "wav", root / "wav") if folder.is_dir()]
    if not folders:
        raise UserError(f"{root} has no audio: looked for dev/wav, test/wav and wav")
    return folders


def find_audio(folders: Sequence[Path], name: str) -> Path:
    """Return the path of a file in the first folder that has it, or its expected path."""
    return next((folder / name for folder in folders if (folder / name).is_file()), folders[0] / name)


def read_voxceleb(root: Path) -> list[Fold]:
    """Read VoxCeleb1's identification split: 1 is train, 2 is dev, 3 is test."""
    lists = [root / name for name in ("iden_split.txt", "veri_test_class.txt")]
    split = next((file for file in lists if file.is_file()), None)
    if split is None:
        raise UserError(f"there is no {lists[0]}: lines of 1, 2 or 3 and a path such as id10001/VIDEO/00001.wav")
    folders = find_audio_folders(root)
    parts: dict[str, list[Utterance]] = {"1": [], "2": [], "3": []}
    for number, line in enumerate(read_text(split).split("\n"), 1):
        if line.strip():
            part, *names = line.split()
            if part not in parts or len(names) != 1:
                raise UserError(f"{split} line {number}: {line.strip()!r} is not 1, 2 or 3 and a path")
            (name,) = names
            path = find_audio(folders, name)
            speaker = name.split("/")[0]
            parts[part].append(Utterance(name, path, (speaker,), speaker, crop=VOXCELEB_CROP if part == "1" else 0))
    paths = [u.path for part in parts.values() for u in part]
    require_audio(paths, str(split))
    report_unlabelled(root, paths)
    return [Fold("VoxCeleb1", *parts.values())]


def read_speakers(root: Path) -> list[Utterance]:
    """Read all utterances of the training speakers for verification, in `dev/wav`."""
    folder = root / "dev" / "wav"
    if not folder.is_dir():
        raise UserError(f"there is no {folder}: verification trains on the speakers in dev and tests on those in test")
    found = []
    for path in sorted(folder.glob("*/*/*.wav")):
        name = "/".join(path.parts[-3:])
        speaker = path.parts[-3]
        found.append(Utterance(name, path, (speaker,), speaker, crop=VOXCELEB_CROP, sound=Sound.TRIMMED))
    if not found:
        raise UserError(f"{folder} has no utterances: looked for SPEAKER/VIDEO/*.wav")
    return found


def read_trials(root: Path) -> tuple[list[Trial], list[Utterance]]:
    """Read the cleaned original trials of VoxCeleb1, and their utterances."""
    files = [root / name for name in TRIALS]
    file = next((file for file in files if file.is_file()), None)
    if file is None:
        raise UserError(f"there is no {files[0]}: lines of 1 or 0 and two paths such as id10270/VIDEO/00001.wav")
    trials = []
    for number, line in enumerate(read_text(file).splitlines(), 1):
        if line.strip():
            fields = line.split()
            if len(fields) != 3 or fields[0] not in ("0", "1"):
                raise UserError(f"{file} line {number}: {line.strip()!r} is not 1 or 0 and two paths")
            trials.append(Trial(fields[0] == "1", fields[1], fields[2]))
    check_trials(trials, str(file))
    names = dict.fromkeys(name for trial in trials for name in (trial.first, trial.second))
    folders = find_audio_folders(root)
    utterances = [
        Utterance(name, find_audio([folders[-1], *folders], name), (name.split("/")[0],), sound=Sound.TRIMMED)
        for name in names
    ]
    require_audio([u.path for u in utterances], str(file))
    return trials, utterances


def check_trials(trials: Sequence[Trial], source: str) -> None:
    if {trial.same for trial in trials} != {True, False}:
        raise UserError(f"{source}: needs trials with the same speaker and trials with different speakers")

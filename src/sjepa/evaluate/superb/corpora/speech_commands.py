"""Speech Commands v0.01: ten words, the others, and silence."""

import hashlib
import re
from pathlib import Path

from sjepa.audio.io import SAMPLE_RATE
from sjepa.errors import UserError
from sjepa.evaluate.superb.records import Fold, Utterance, find_folder
from sjepa.evaluate.superb.sound import Sound

COMMANDS = ["yes", "no", "up", "down", "left", "right", "on", "off", "stop", "go"]
UNKNOWN, SILENCE = "_unknown_", "_silence_"


def read_speech_commands(root: Path) -> list[Fold]:
    """Read Speech Commands v0.01 with 12 classes. Speaker hashes split train and dev. Test is a separate folder."""
    folder = find_folder(root, "speech_commands_v0.01")
    test_folder = find_folder(root, "speech_commands_test_set_v0.01")
    parts: dict[str, list[Utterance]] = {"train": [], "dev": []}
    for path in sorted(folder.glob("*/*.wav")):
        word = path.parent.name
        share = hash_to_percent(path.name)
        if word != "_background_noise_" and not 10 <= share < 20:  # this tenth is the original test part
            label = word if word in COMMANDS else UNKNOWN
            name = f"{word}/{path.stem}"
            speaker = path.name.split("_")[0]
            spoken = Utterance(name, path, (label,), speaker, sound=Sound.LOWERED)
            parts["dev" if share < 10 else "train"].append(spoken)
    noises = sorted((folder / "_background_noise_").glob("*.wav"))
    silence = [
        Utterance(f"{SILENCE}/{path.stem}", path, (SILENCE,), crop=SAMPLE_RATE, sound=Sound.LOWERED) for path in noises
    ]
    test = [
        Utterance(f"{path.parent.name}/{path.stem}", path, (path.parent.name,), sound=Sound.LOWERED)
        for path in sorted(test_folder.glob("*/*.wav"))
    ]
    odd = {u.label[0] for u in test} - {*COMMANDS, UNKNOWN, SILENCE}
    if odd:
        raise UserError(f"{test_folder} has a folder {min(odd)}: expected only the 12 classes")
    return [Fold("Speech Commands v0.01", parts["train"] + silence, parts["dev"] + silence, test)]


def hash_to_percent(file_name: str) -> float:
    """Map a speaker to a number between 0 and 100, as in the corpus's README."""
    largest = 2**27 - 1
    speaker = re.sub(r"_nohash_.*$", "", file_name)
    return (int(hashlib.sha1(speaker.encode()).hexdigest(), 16) % (largest + 1)) * (100.0 / largest)

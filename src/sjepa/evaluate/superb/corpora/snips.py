"""Audio SNIPS: commands with slots, by speaker."""

from pathlib import Path

from sjepa.audio.io import EXTENSIONS
from sjepa.errors import UserError
from sjepa.evaluate.superb.records import Fold, Utterance, find_folder, require_audio
from sjepa.evaluate.superb.text import mark_slots
from sjepa.files import read_text
from sjepa.progress import say

SNIPS_SPEAKERS = {
    "train": ["Ivy", "Joanna", "Joey", "Justin", "Kendra", "Kimberly", "Matthew", "Salli"],
    "valid": ["Aditi", "Amy", "Geraint", "Nicole"],
    "test": ["Brian", "Emma", "Raveena", "Russell"],
}


def find_snips_folder(root: Path) -> Path:
    return root / "SNIPS" if (root / "SNIPS").is_dir() else root


def read_snips(root: Path) -> list[Fold]:
    """Read Audio SNIPS, split by speaker. Labels are sentences with slot marks."""
    root = find_snips_folder(root)
    transcripts = root / "all.iob.snips.txt"
    if not transcripts.is_file():
        raise UserError(f"there is no {transcripts}: lines of an id, BOS words EOS, a tab, and a tag for each")
    sentences = {}
    for number, line in enumerate(read_text(transcripts).splitlines(), 1):
        # Amy-snips-test-0 BOS play sade EOS<tab>O O artist PlayMusic
        if "\t" in line:
            spoken, tags = (side.split() for side in line.split("\t", 1))
            if len(spoken) != 1 + len(tags):
                raise UserError(f"{transcripts} line {number}: needs one tag for each word")
            sentences[spoken[0]] = mark_slots(spoken[2:-1], tags[1:-1])
    parts = []
    for subset, speakers in SNIPS_SPEAKERS.items():
        folder = find_folder(root, subset)
        audio = {path.stem: path for path in sorted(folder.rglob("*")) if path.suffix in EXTENSIONS}
        audio = {name: path for name, path in audio.items() if name.split("-")[0] in speakers}
        wanted = [n for n in sentences if n.split("-")[0] in speakers and n.split("-")[2:3] == [subset]]
        require_audio([audio.get(name, folder / f"{name}.wav") for name in wanted], str(transcripts))
        unlabelled = sorted(audio.keys() - sentences.keys())
        if unlabelled:  # s3prl skips these too
            say(f"audio without labels in {folder}: {len(unlabelled)} left out, first {unlabelled[0]}")
        named = [name for name in audio if name in sentences]
        parts.append([Utterance(name, audio[name], sentences[name], name.split("-")[0]) for name in named])
    return [Fold("Audio SNIPS", *parts)]

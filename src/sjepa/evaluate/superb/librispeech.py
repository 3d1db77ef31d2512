"""LibriSpeech in its own layout: transcripts, speakers and their sex, chapters, aligned phones."""

from collections.abc import Sequence
from pathlib import Path

from sjepa.audio.io import EXTENSIONS
from sjepa.data.layouts.librispeech import read_sexes, read_transcripts
from sjepa.errors import UserError
from sjepa.evaluate.superb.records import Fold, Utterance, folder_in, json_lines, split_by_speaker

SILENCES = frozenset({"SIL", "SPN", "", "sp", "sil", "spn"})
STANDARD = ("train-clean-100", "dev-clean", "test-clean")


def subset_folder(root: Path, subset: str) -> Path:
    return folder_in(root, subset, f"LibriSpeech/{subset}")


def read_subset(root: Path, subset: str) -> list[Utterance]:
    """All utterances of a subset, labelled with their transcripts."""
    folder = subset_folder(root, subset)
    found: list[Utterance] = []
    unlabelled: list[Path] = []
    for chapter in sorted(folder.glob("*/*"), key=lambda path: (path.parent.name, path.name)):
        if not chapter.is_dir():
            continue
        audio = {path.stem: path for path in sorted(chapter.iterdir()) if path.suffix in EXTENSIONS}
        transcript = chapter / f"{chapter.parent.name}-{chapter.name}.trans.txt"
        texts = {name: text.strip() for name, text in read_transcripts(str(transcript)).items() if text.strip()}
        missing = sorted(texts.keys() - audio.keys())
        if missing:
            raise UserError(
                f"labels without audio: {transcript} names {missing[0]}, which is not in {chapter}; "
                "put it there, or take its line out of the transcript"
            )
        unlabelled += [path for name, path in audio.items() if name not in texts]
        found += [Utterance(name, audio[name], texts[name], chapter.parent.name) for name in sorted(texts)]
    if unlabelled:
        raise UserError(f"audio without labels: {len(unlabelled)} of {subset}, first {unlabelled[0]}")
    if not found:
        raise UserError(f"{folder} holds no utterances: looked for SPEAKER/CHAPTER/*.trans.txt")
    return found


def standard_fold(root: Path) -> Fold:
    """SUPERB's: train-clean-100, dev-clean, test-clean."""
    for subset in STANDARD:
        try:
            subset_folder(root, subset)
        except UserError as error:
            raise UserError(f"{error}; dev-clean alone is enough for --lite") from None
    return Fold("LibriSpeech", *(read_subset(root, subset) for subset in STANDARD))


def subset_fold(root: Path, subset: str = "dev-clean") -> Fold:
    """One subset alone, split by speaker."""
    return split_by_speaker(read_subset(root, subset), f"LibriSpeech {subset}", subset)


def speaker_sex(root: Path) -> dict[str, str]:
    """Sex of each speaker from SPEAKERS.TXT; of none without that file."""
    for folder in (root, root / "LibriSpeech", root.parent):
        if (folder / "SPEAKERS.TXT").is_file():
            return read_sexes(folder / "SPEAKERS.TXT")
    return {}


def phone_files(root: Path) -> list[Path]:
    """Files of phone labels, `phones-SUBSET.jsonl` or `.jsonl.gz`, in a folder or beside it."""
    return [file for place in (root, root.parent) for file in sorted(place.glob("phones-*.jsonl*"))]


def phones_missing(root: Path, subset: str) -> str:
    """What to say when there are no phone labels."""
    return (
        f"there are no phone labels in {root} or beside it: phones-{subset}.jsonl, or .jsonl.gz, with lines like "
        '{"name": "84-121123-0000", "phones": ["SIL", "G", "G", ...]}, 100 labels a second'
    )


def aligned_phones(root: Path) -> dict[str, list[str]]:
    """Phone labels at 100 a second, of each utterance that has some."""
    labels: dict[str, list[str]] = {}
    for file in phone_files(root):
        for number, row in enumerate(json_lines(file), 1):
            if not isinstance(row.get("name"), str) or not isinstance(row.get("phones"), list):
                raise UserError(f"{file} line {number}: there is no name, or no list of phones")
            labels[row["name"]] = row["phones"]
    return labels


def phone_sequence(labels: list[str]) -> str:
    """Runs of one label become one phone; silence is left out."""
    return " ".join(
        label
        for before, label in zip(["", *labels[:-1]], labels, strict=True)
        if label != before and label not in SILENCES
    )


def read_lexicons(paths: Sequence[Path]) -> dict[str, str]:
    """Word to phones, the first pronunciation of each word in the first lexicon that has it."""
    lexicon: dict[str, str] = {}
    for path in paths:
        if not path.is_file():
            raise UserError(f"there is no lexicon {path}: lines of a word and its phones")
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.strip():
                word, *phones = line.split()
                lexicon.setdefault(word, " ".join(phones))
    return lexicon

"""LibriSpeech: transcripts, speakers and their sex, chapters, aligned phones."""

from collections.abc import Sequence
from pathlib import Path

from sjepa.audio.io import EXTENSIONS
from sjepa.counts import name_first
from sjepa.data.layouts.librispeech import read_sexes, read_transcripts
from sjepa.errors import UserError
from sjepa.evaluate.superb.records import Fold, Utterance, find_folder, read_json_lines, split_by_speaker
from sjepa.files import read_text

SILENCES = frozenset({"SIL", "SPN", "", "sp", "sil", "spn"})
STANDARD = ("train-clean-100", "dev-clean", "test-clean")


def find_subset_folder(root: Path, subset: str) -> Path:
    """Find a subset by its name. It may be the root itself."""
    return find_folder(root, subset, f"LibriSpeech/{subset}")


def suggest_subset(root: Path) -> str:
    """Return a hint for a folder without the requested subset, if it is or holds another one. Otherwise nothing."""
    if any(root.glob("*/*/*.trans.txt")):
        return f"; it holds speakers itself, so add --subset {root.absolute().name}"
    other = next(root.glob("*/*/*/*.trans.txt"), None)
    return f"; it holds {other.parents[2].name}: choose it with --subset" if other is not None else ""


def read_subset(root: Path, subset: str, need_text: bool = True) -> list[Utterance]:
    """Read all utterances of a subset, labelled with their transcripts.

    Without `need_text`, an utterance without a transcript has an empty label, and transcripts without audio are left
    out, so that a part of a subset can be read. Otherwise both are errors.
    """
    try:
        folder = find_subset_folder(root, subset)
    except UserError as error:
        raise UserError(f"{error}{suggest_subset(root)}") from None
    found: list[Utterance] = []
    unlabelled: list[Path] = []
    for chapter in sorted(folder.glob("*/*"), key=lambda path: (path.parent.name, path.name)):
        if not chapter.is_dir():
            continue
        audio = {path.stem: path for path in sorted(chapter.iterdir()) if path.suffix in EXTENSIONS}
        transcript = chapter / f"{chapter.parent.name}-{chapter.name}.trans.txt"
        texts = {name: text.strip() for name, text in read_transcripts(str(transcript)).items() if text.strip()}
        missing = sorted(texts.keys() - audio.keys())
        if missing and need_text:
            raise UserError(
                f"labels without audio: {transcript} names {name_first(missing)}, not in {chapter}; "
                "add the audio, or remove such lines from the transcripts"
            )
        unlabelled += [path for name, path in audio.items() if name not in texts]
        names = sorted(texts if need_text else audio)
        found += [Utterance(name, audio[name], texts.get(name, ""), chapter.parent.name) for name in names]
    if unlabelled and need_text:
        raise UserError(f"audio without labels: {len(unlabelled)} of {subset}, first {unlabelled[0]}")
    if not found:
        looked = "*.trans.txt" if need_text else "*.flac"
        raise UserError(f"{folder} has no utterances: looked for SPEAKER/CHAPTER/{looked}")
    return found


def read_standard_fold(root: Path) -> Fold:
    """Read SUPERB's parts: train-clean-100, dev-clean, test-clean."""
    for subset in STANDARD:
        try:
            find_subset_folder(root, subset)
        except UserError as error:
            raise UserError(f"{error}; --lite needs only dev-clean") from None
    return Fold("LibriSpeech", *(read_subset(root, subset) for subset in STANDARD))


def read_subset_fold(root: Path, subset: str = "dev-clean") -> Fold:
    """Read one subset, split by speaker."""
    return split_by_speaker(read_subset(root, subset), f"LibriSpeech {subset}", subset)


def read_speaker_sexes(root: Path) -> dict[str, str]:
    """Read the sex of each speaker from SPEAKERS.TXT, if it exists."""
    for folder in (root, root / "LibriSpeech", root.parent):
        if (folder / "SPEAKERS.TXT").is_file():
            return read_sexes(folder / "SPEAKERS.TXT")
    return {}


def find_phone_files(root: Path) -> list[Path]:
    """Find phone labels, `phones-SUBSET.jsonl` or `.jsonl.gz`, in a folder, its folder LibriSpeech or its parent."""
    patterns, places = ("phones-*.jsonl", "phones-*.jsonl.gz"), (root, root / "LibriSpeech", root.parent)
    return [file for place in places for pattern in patterns for file in sorted(place.glob(pattern))]


def describe_missing_phones(root: Path, subset: str) -> str:
    """Return the error message for missing phone labels."""
    return (
        f"there are no phone labels: looked for phones-{subset}.jsonl and phones-{subset}.jsonl.gz in {root} and "
        f'{root.parent}, with lines like {{"name": "84-121123-0000", "phones": ["SIL", "G", "G", ...]}}, 100 labels '
        "per second"
    )


def read_aligned_phones(root: Path) -> dict[str, list[str]]:
    """Read phone labels by utterance, 100 per second. If several files label an utterance, the first one counts."""
    labels: dict[str, list[str]] = {}
    for file in find_phone_files(root):
        for number, row in read_json_lines(file):
            if not isinstance(row.get("name"), str) or not isinstance(row.get("phones"), list):
                raise UserError(f"{file} line {number}: needs a name and a list of phones")
            labels.setdefault(row["name"], row["phones"])
    return labels


def merge_phones(labels: list[str]) -> str:
    """Merge repeated labels and drop silence."""
    return " ".join(
        label
        for before, label in zip(["", *labels[:-1]], labels, strict=True)
        if label != before and label not in SILENCES
    )


def read_lexicons(paths: Sequence[Path]) -> dict[str, str]:
    """Read the phones of each word: its first pronunciation in the first lexicon that has it."""
    lexicon: dict[str, str] = {}
    for path in paths:
        if not path.is_file():
            raise UserError(f"there is no lexicon {path}: lines of a word and its phones")
        for line in read_text(path).splitlines():
            if line.strip():
                word, *phones = line.split()
                lexicon.setdefault(word, " ".join(phones))
    return lexicon

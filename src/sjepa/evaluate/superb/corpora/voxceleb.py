"""VoxCeleb1: who speaks."""

from pathlib import Path

from sjepa.audio.io import SAMPLE_RATE
from sjepa.errors import UserError
from sjepa.evaluate.superb.records import Fold, Utterance, require_audio, say_unlabelled

VOXCELEB_CROP = 8 * SAMPLE_RATE


def read_voxceleb(root: Path) -> list[Fold]:
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

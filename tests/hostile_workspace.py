"""The folder in which attacks run, with sound inputs to damage, and what an attack is."""

import dataclasses
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import soundfile
from calls import sjepa
from conftest import babble, micro_config
from hostile_inputs import make_inputs

from sjepa.settings_file import to_toml
from sjepa.train.loop import pretrain


class Workspace:
    """Sound inputs that attacks copy and damage."""

    def __init__(self, folder: Path, source: Path | None = None):
        """A new workspace in a folder; its inputs are made, which takes a while, or copied from another workspace."""
        self.folder, self.inputs = folder, folder / "inputs"
        self.scratch, self.out = folder / "scratch", folder / "scratch" / "out"
        self.corpus, self.run, self.index = (self.inputs / name for name in ("corpus", "run", "index"))
        self.preset = self.inputs / "micro.toml"
        if source is None:
            self.make()
        else:
            shutil.copytree(source / "inputs", self.inputs)
            settings = self.inputs / "features" / "_embed.json"  # it names the encoder
            settings.write_text(settings.read_text().replace(str(source), str(folder)))

    @property
    def names(self) -> dict[str, str]:
        """The places that arguments name in braces."""
        return {name: str(getattr(self, name)) for name in ("scratch", "corpus", "run", "index", "preset")}

    def make(self) -> None:
        """Make a corpus, a run, an index, analyses and results."""
        self.corpus.mkdir(parents=True)
        for number in range(4):
            soundfile.write(self.corpus / f"{number}.wav", babble(1.0 + 0.1 * number, number), 16_000)
        shutil.copytree(self.corpus, self.inputs / "labelled")
        labels = [
            {"path": f"{n}.wav", "speaker": f"s{n % 3}", "text": "one two", "gender": "FM"[n % 2]}
            | {"phones": [[0.0, 0.3, "a"], [0.3, 0.6, "b"], [0.6, 2.0, "c"]], "words": [[0.0, 0.5, "one"]]}
            for n in range(4)
        ]
        (self.inputs / "labelled" / "labels.jsonl").write_text("".join(json.dumps(line) + "\n" for line in labels))
        config = micro_config(phase1={"steps": 2}, phase2={"steps": 2})
        self.preset.write_text(to_toml(config))
        assert pretrain(config, self.corpus, self.run, show=False)
        (self.run / "results").mkdir()
        (self.run / "results" / "results.json").write_text(json.dumps(RESULT))
        assert sjepa("index", self.corpus, "--out", self.index).status == 0
        assert sjepa("analyze", "erank", self.run).status == 0
        assert sjepa("analyze", "pareto", self.run).status == 0
        assert sjepa("analyze", "entropy", self.run, "--data", self.corpus).status == 0
        audio = (self.corpus / "0.wav",)
        assert sjepa("analyze", "utterance", self.run, *audio).status == 0
        next((self.run / "analysis").glob("utterance-*.json")).rename(self.run / "analysis" / "utterance-0.json")
        make_inputs(self.inputs, self.corpus, self.run, self.preset)

    def fresh(self) -> None:
        """Empty the scratch folder."""
        shutil.rmtree(self.scratch, ignore_errors=True)
        self.scratch.mkdir()

    def snapshot(self, but: Path) -> dict[str, tuple[int, int]]:
        """Size and time of everything that a command may not touch."""
        found = {}
        for where, folders, files in os.walk(self.folder):
            folders[:] = [name for name in folders if Path(where, name) != but]
            for name in files:
                path = Path(where, name)
                if path != but:
                    status = path.lstat()
                    found[str(path)] = status.st_size, status.st_mtime_ns
        return found


RESULT: dict[str, Any] = {
    "task": "asr",
    "protocol": {"name": "full", "steps": 10, "lr": 1e-4},
    "encoder": {"name": "mine", "parameters": 1, "fingerprint": "0", "states": 3},
    "metrics": {"wer": 1.0},
    "decoded": {"paper": {"wer": 0.5}},
    "learning_rate": 1e-3,
    "dev": {"by_learning_rate": {"0.001": 1.0}},
}


@dataclasses.dataclass(frozen=True)
class Attack:
    """Untrusted input, and the command that reads it."""

    about: str
    arguments: tuple[str, ...]
    prepare: Callable[[Workspace], None] = lambda _: None
    writes: str = "{scratch}/out"
    """The file or folder that the command may write."""

    def __repr__(self) -> str:
        return f"{self.about}: sjepa {' '.join(self.arguments)}"[:2000]

"""A run folder: the names of its files, how to read it, and how to create a new run.

No other module knows these names. Reading a run needs no torch.
"""

import json
import os
import platform
import re
import sys
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sjepa.errors import UserError
from sjepa.fields import TABLE, TEXT, WHOLE, require
from sjepa.files import contents, read_json, refuse_file, write_whole
from sjepa.locks import lock_folder
from sjepa.phase_names import phase_number
from sjepa.runs.events import Event, read_events, select_events

if TYPE_CHECKING:
    from sjepa.config import Config

README = """This folder holds one S-JEPA pre-training run.

config.toml            every setting of the run; `sjepa pretrain --out` with this folder continues it
run.json               data, versions, command; every start and stop, and what each start changed
metrics.jsonl          one JSON object per line: training intervals, layer checks, phases, fits
tensorboard/           the same for TensorBoard, if it is installed
checkpoints/step-N/    all state at step N (safetensors and JSON)
gmm-phaseN.safetensors the mixture (or codebook) of phase N
refused.txt            audio that was left out, in whole or in part, with the reason; only if there is any
encoder/               the encoder as of the last checkpoint, for use: sjepa.Encoder.from_pretrained, or
                       transformers.HubertModel.from_pretrained
encoder-phaseN/        the encoder at the end of phase N, for every phase but the last
before-step-N/         a copy of the run at step N, before it was lengthened or got other audio
"""
README_NAME = "README.txt"
INITIAL_LICENCE = "initial_licence"  # in run.json: licence of the encoder that training started from, if known
HISTORY, PENDING = "history", "pending"  # keys of run.json that are not facts; see history.py
STEP = re.compile(r"step-(\d{8,15})")
EARLIER = re.compile(r"before-step-(\d{1,15})")


def page_name(runs: int) -> str:
    """The name of the page that `sjepa report` writes about one or several runs."""
    return "report.html" if runs == 1 else "comparison.html"


class RunFolder:
    """A run folder, which may not exist yet. Reading it needs no torch.

    >>> from sjepa import RunFolder
    >>> run = RunFolder("runs/mine")
    >>> run.step, run.planned_steps
    (12, 12)
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.path = Path(path)

    def __str__(self) -> str:
        return str(self.path)

    def __repr__(self) -> str:
        return f"RunFolder({str(self.path)!r})"

    def __fspath__(self) -> str:
        return str(self.path)

    # Paths

    @property
    def config_file(self) -> Path:
        return self.path / "config.toml"

    @property
    def facts_file(self) -> Path:
        return self.path / "run.json"

    @property
    def log(self) -> Path:
        """The events, one JSON object per line."""
        return self.path / "metrics.jsonl"

    @property
    def readme(self) -> Path:
        return self.path / README_NAME

    @property
    def tensorboard(self) -> Path:
        return self.path / "tensorboard"

    @property
    def refused(self) -> Path:
        """The list of unusable audio."""
        return self.path / "refused.txt"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def encoder(self) -> Path:
        """The encoder as of the newest checkpoint."""
        return self.path / "encoder"

    @property
    def results(self) -> Path:
        """Results of evaluations of the run's encoders."""
        return self.path / "results"

    @property
    def analysis(self) -> Path:
        """Results of `sjepa analyze`."""
        return self.path / "analysis"

    def checkpoint(self, step: int) -> Path:
        return self.checkpoints / f"step-{step:08d}"

    def phase_encoder(self, phase: int) -> Path:
        """The encoder at the end of a phase that is not the last one."""
        return self.path / f"encoder-phase{phase}"

    def codebook(self, phase: int) -> Path:
        """The mixture, or another codebook, at the end of a phase."""
        return self.path / f"gmm-phase{phase}.safetensors"

    def earlier(self, step: int) -> Path:
        """The copy of the run at a step, made before the run was changed there. It is a complete run."""
        return self.path / f"before-step-{step}"

    # Reading

    @property
    def exists(self) -> bool:
        """Whether this is a run. config.toml is written last, so it marks a run."""
        return self.config_file.is_file()

    @property
    def name(self) -> str:
        """The folder's name; `demo/run` is `demo`, and `mine/before-step-5` is `mine-before-step-5`."""
        path = self.path.resolve()
        if EARLIER.fullmatch(path.name) and RunFolder(path.parent).exists:
            return f"{RunFolder(path.parent).name}-{path.name}"
        return path.parent.name if path.name == "run" else path.name

    @property
    def settings_text(self) -> str:
        """The text of config.toml, or of a pending change that will replace it."""
        pending = self.pending
        return self.config_file.read_text("utf-8") if pending is None else str(pending["config"])

    @property
    def settings(self) -> dict[str, Any]:
        """config.toml as plain tables, unchecked, to read runs of other versions. Empty without the file."""
        try:
            return tomllib.loads(self.settings_text) if self.exists else {}
        except (ValueError, RecursionError) as error:  # not TOML, or not text
            raise UserError(f"{self.config_file} is not valid TOML: {error}") from error

    @property
    def record(self) -> dict[str, Any]:
        """The contents of run.json. Empty without the file."""
        return read_json(self.facts_file) if self.facts_file.is_file() else {}

    @property
    def pending(self) -> dict[str, Any] | None:
        """A change of the run that was recorded but not carried out yet."""
        pending = self.record.get(PENDING)
        if pending is not None:
            where = f"{self.facts_file}: {PENDING}"
            if not isinstance(pending, dict):
                raise UserError(f"{where} should be an object")
            require(pending, "config", TEXT, where)
            require(pending, "facts", TABLE, where)
        return pending

    @property
    def facts(self) -> dict[str, Any]:
        """run.json without the history: data, versions, command. Empty without the file."""
        pending = self.pending
        facts = {key: value for key, value in self.record.items() if key not in (HISTORY, PENDING)}
        return facts | (pending["facts"] if pending is not None else {})

    @property
    def history(self) -> list[dict[str, Any]]:
        """Every start of the run, the oldest first; see history.py."""
        found = self.record.get(HISTORY)
        return [entry for entry in found if isinstance(entry, dict)] if isinstance(found, list) else []

    @property
    def data(self) -> str:
        """The audio of the run, as given on the command line. Empty if not known."""
        return str(self.facts.get("data", ""))

    @property
    def planned_steps(self) -> int:
        """Steps of all phases, or 0 if not known."""
        return planned_steps(self.settings)

    @property
    def checkpoint_steps(self) -> list[int]:
        """Steps with a checkpoint, the newest first."""
        found = [STEP.fullmatch(path.name) for path in self.checkpoints.glob("step-*") if path.is_dir()]
        return sorted((int(match[1]) for match in found if match), reverse=True)

    @property
    def changed_steps(self) -> list[int]:
        """Steps at which the run was lengthened or got other audio, if a copy from before the change exists."""
        found = [EARLIER.fullmatch(path.name) for path in self.path.glob("before-step-*") if path.is_dir()]
        return sorted(int(match[1]) for match in found if match)

    @property
    def step(self) -> int:
        """Step of the newest checkpoint, or of the last logged line without checkpoints."""
        steps = self.checkpoint_steps
        if not steps and self.log.is_file():
            steps = [line["step"] for line in select_events(self.events(), "train")][-1:]
        return steps[0] if steps else 0

    @property
    def is_complete(self) -> bool:
        """Whether the newest checkpoint is at the end of the last phase. It is not read, so damage goes unnoticed.

        Only loading compares hashes, because that reads the whole checkpoint. The exported encoder has its own files.
        `sjepa pretrain` repairs both: it continues before a damaged checkpoint, and writes a damaged encoder again.
        """
        steps = self.checkpoint_steps
        planned = self.planned_steps
        return bool(steps) and (steps[0] == planned or not planned)

    @property
    def is_unstarted(self) -> bool:
        """Whether the folder is empty, or holds only files from before the config is written."""
        refuse_file(self.path)
        return {path.name for path in contents(self.path)} <= {self.facts_file.name, self.readme.name}

    def config(self) -> "Config":
        """Return the settings, typed and checked."""
        self.require()
        from sjepa.settings_file import from_complete_toml

        try:
            return from_complete_toml(self.settings_text, str(self.config_file))
        except UnicodeDecodeError as error:
            raise UserError(f"{self.config_file} is not valid TOML: {error}") from error

    def events(self) -> list[Event]:
        """Return all events of the log."""
        if not self.log.is_file():
            self.require()
        return read_events(self.log)

    def metrics(self) -> dict[str, list[Any]]:
        """Return the logged training intervals as columns of equal length. Missing values are None.

        `pandas.DataFrame(run.metrics())` makes a table of them.

        >>> from sjepa import RunFolder
        >>> RunFolder("runs/mine").metrics()["step"][-3:]
        [10, 11, 12]
        """
        lines = select_events(self.events(), "train")
        names = dict.fromkeys(name for line in lines for name in line)
        return {name: [line.get(name) for line in lines] for name in names}

    def require(self, *files: Path) -> None:
        """Raise UserError if this is not a run, or if one of these files is missing."""
        if not self.path.is_dir():
            raise UserError(f"there is no run {self}: {suggest_start(self)}")
        if not self.exists:
            hint = self.suggest_other() or f"; {suggest_start('RUN')}"
            raise UserError(f"{self} is not a run: it has no {self.config_file.name}{hint}")
        for file in files:
            if not file.is_file():
                raise UserError(
                    f"{self} has no {file.relative_to(self.path).as_posix()}: the first checkpoint makes one; "
                    f"`sjepa pretrain --out {self}` continues"
                )

    def suggest_other(self) -> str:
        """Return a hint for a folder that is not a run, if it lies in a run or holds runs. Otherwise return nothing."""
        around = RunFolder(self.path.parent)
        if around.exists:
            return f"; did you mean {around}?"
        inside = [RunFolder(path) for name in ("*", "*/run") for path in sorted(self.path.glob(name))]
        runs = [run for run in inside if run.exists]
        if len(runs) == 1:
            return f"; did you mean {runs[0]}?"
        return f"; it holds {len(runs)} runs: give one of them, such as {runs[0]}" if runs else ""

    # Writing

    def create(self, config: "Config", data: str, corpus: str, initial_licence: str = "") -> None:
        """Create the folder of a new run. `corpus` is the fingerprint of the audio.

        `initial_licence` is the licence of the encoder that training starts from, if it is known.
        """
        import torch

        from sjepa import distributed
        from sjepa.version import __version__

        self.path.mkdir(parents=True, exist_ok=True)
        versions = {"sjepa": __version__, "torch": torch.__version__, "python": platform.python_version()}
        facts = {"data": data, "corpus": corpus} | versions | describe_process()
        if initial_licence:
            facts[INITIAL_LICENCE] = initial_licence
        self.write_start(config, facts | {"world_size": distributed.world_size()})

    def write_start(self, config: "Config", facts: dict[str, Any]) -> None:
        """Write the first files of a run. The config comes last, because it marks the folder as a run."""
        from sjepa.settings_file import to_toml

        write_whole(self.facts_file, json.dumps(facts, indent=1) + "\n")
        write_whole(self.readme, README)
        write_whole(self.config_file, to_toml(config))

    def check_corpus(self, corpus: str, data: str) -> None:
        """Raise UserError if the run was trained on audio with another fingerprint."""
        if self.facts.get("corpus") == corpus:
            return
        if data == self.data:
            raise UserError(
                f"the audio in {data} has changed since {self} was trained on it: files were added, removed or "
                "replaced. Restore them, or choose another --out; --replace-data continues on the audio as it is now"
            )
        raise UserError(
            f"{self} was trained on other audio ({self.data}): choose another --out, or give the same data; "
            "--replace-data continues it on this audio"
        )

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the run for this process. The lock is released however the process ends."""
        with lock_folder(self.path, f"another process is training {self}: wait for it, or choose another --out"):
            yield

    def check_lock(self) -> None:
        """Raise UserError if another process trains the run or its folder cannot be written. Keep no new folder."""
        with self.lock():
            pass


def suggest_start(run: object) -> str:
    """Return the command that starts a new run, for the message about one that does not exist."""
    return f"`sjepa pretrain --preset tiny --data AUDIO --out {run}` starts one"


def planned_steps(settings: dict[str, Any]) -> int:
    """Return the steps of all phases in plain settings, or 0 if not known."""
    phases = [table for name, table in settings.items() if phase_number(name) is not None and isinstance(table, dict)]
    return sum(phase["steps"] for phase in phases if WHOLE.accepts(phase.get("steps")))


def timestamp() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S")


def describe_process() -> dict[str, str]:
    """Return the command of this process, and the time."""
    return {"command": " ".join(sys.argv), "started": timestamp()}

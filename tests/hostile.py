"""Untrusted input: damaged audio, lists, JSON, TOML and safetensors, and any command line.

Each strategy draws an `Attack`: it prepares files in a workspace and names the command to run. `attempt` runs it and
returns what is wrong with the outcome, if anything: an exit code other than 0, 1 or 2, a traceback, a failure without a
message, a changed file outside `--out`, or a command that takes too long.
"""

import dataclasses
import io
import json
import os
import shutil
import signal
import time
import typing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

import soundfile
from calls import Ended, sjepa
from conftest import babble, micro_config
from hostile_inputs import COST, INPUTS, make_inputs
from hypothesis import strategies as st
from test_options import option_classes

from sjepa.config_options import add_config_options
from sjepa.data.layouts.fields import NAMES
from sjepa.settings_file import to_toml
from sjepa.subcommands import option
from sjepa.train.loop import pretrain

# CPU time decides, because it does not depend on how busy the machine is. The wall limit finds waits that use no CPU.
CPU_SECONDS = 120
WALL_SECONDS = 1800
IDLE = 0.5  # seconds of CPU time below which a process counts as waiting
AUDIO = {
    "wav": {"format": "WAV"},
    "flac": {"format": "FLAC"},
    "ogg": {"format": "OGG", "subtype": "VORBIS"},
    "opus": {"format": "OGG", "subtype": "OPUS"},
    "mp3": {"format": "MP3"},
}


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


def make_source(folder: Path) -> None:
    """Make a workspace to copy. Every command must succeed on its sound inputs, or damage would go unnoticed."""
    workspace = Workspace(folder)
    for arguments in {arguments for calls in FILES.values() for arguments in calls}:
        shutil.rmtree(workspace.scratch, ignore_errors=True)
        shutil.copytree(workspace.inputs, workspace.scratch)
        ended = sjepa(*(fill_in(argument, workspace.names) for argument in arguments))
        assert ended.status == 0 or "already holds another index" in ended.said, (arguments, ended.said)


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


class TooLongError(BaseException):
    """Not an Exception: nothing but the fuzzer may catch it."""


@contextmanager
def time_limit(cpu_seconds: float, wall_seconds: float) -> Iterator[None]:
    """Raise `TooLongError` after so much CPU time of this process, or after so much wall time almost without CPU."""
    used = time.process_time()

    def ring_cpu(*_: object) -> None:
        raise TooLongError(f"it took more than {cpu_seconds:g} s of CPU time")

    def ring_wall(*_: object) -> None:
        nonlocal used
        before, used = used, time.process_time()
        if used - before < IDLE:
            raise TooLongError(f"it waited for more than {wall_seconds:g} s by the clock")
        signal.setitimer(signal.ITIMER_REAL, wall_seconds)  # it works, on a machine that is busy

    handlers = {signal.SIGPROF: ring_cpu, signal.SIGALRM: ring_wall}
    old = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
    signal.setitimer(signal.ITIMER_REAL, wall_seconds)
    try:
        yield
    finally:
        for timer in (signal.ITIMER_PROF, signal.ITIMER_REAL):
            signal.setitimer(timer, 0)
        for number, handler in old.items():
            signal.signal(number, handler)


def attempt(attack: Attack, workspace: Workspace) -> str:
    """Run an attack; what is wrong with the outcome, or nothing."""
    workspace.fresh()
    fill = partial(fill_in, names=workspace.names)
    attack.prepare(workspace)
    arguments = [fill(argument) for argument in attack.arguments]
    writes = Path(fill(attack.writes))
    before, here = workspace.snapshot(writes), os.getcwd()
    os.chdir(workspace.scratch)
    try:
        with time_limit(CPU_SECONDS, WALL_SECONDS):
            ended = sjepa(*arguments)
    except TooLongError as late:
        return str(late)
    finally:
        os.chdir(here)
    return fault(ended) or touched(before, workspace.snapshot(writes))


def fill_in(text: str, names: dict[str, str]) -> str:
    for name, value in names.items():
        text = text.replace(f"{{{name}}}", value)
    return text


def fault(ended: Ended) -> str:
    if "Traceback" in ended.output or ended.status not in (0, 1, 2):
        return f"exit code {ended.status}: {ended.output[-3000:]}"
    if ended.status and not ended.output.strip():
        return f"exit code {ended.status} without a word"
    return ""


def touched(before: dict[str, Any], after: dict[str, Any]) -> str:
    changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    return f"touched outside of --out: {', '.join(changed[:5])}" if changed else ""


# Bytes


@cache
def audio_bytes(kind: str) -> bytes:
    buffer = io.BytesIO()
    soundfile.write(buffer, babble(2.0, 0), 16_000, **AUDIO[kind])
    return buffer.getvalue()


def damage(content: bytes, edits: list[tuple[str, float, bytes]]) -> bytes:
    """Insert, overwrite, remove or cut off bytes at places between 0 and 1."""
    for kind, share, new in edits:
        place = int(share * len(content))
        if kind == "insert":
            content = content[:place] + new + content[place:]
        elif kind == "overwrite":
            content = content[:place] + new + content[place + len(new) :]
        elif kind == "remove":
            content = content[:place] + content[place + len(new) * 8 :]
        else:
            content = content[:place]
    return content


PLACES = st.one_of(st.floats(0, 1), st.floats(0, 0.02))  # headers are at the beginning
BYTES = st.one_of(st.binary(min_size=1, max_size=8), st.binary(min_size=100, max_size=2000))
EDITS = st.lists(
    st.tuples(st.sampled_from(["insert", "overwrite", "remove", "cut"]), PLACES, BYTES), min_size=1, max_size=6
)


@st.composite
def audio_attacks(draw: st.DrawFn) -> Attack:
    kind, edits = draw(st.sampled_from(list(AUDIO))), draw(EDITS)

    def prepare(workspace: Workspace) -> None:
        folder = workspace.scratch / "audio"
        folder.mkdir()
        shutil.copy(workspace.corpus / "0.wav", folder / "sound.wav")
        (folder / f"damaged.{kind}").write_bytes(damage(audio_bytes(kind), edits))

    command = draw(st.sampled_from(["index", "embed"]))
    more = ("--encoder", "{run}") if command == "embed" else ("--max-seconds", "1")
    return Attack(f"{kind} damaged", (command, "{scratch}/audio", *more, "--out", "{scratch}/out"), prepare)


# Lists

ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-3, 3),
    st.sampled_from([10**400, -(10**30), 2**63, 2**31, 1e308, float("nan"), float("inf"), -0.0]),
    st.floats(),
    st.text(max_size=30),
    st.sampled_from(
        [
            "0.wav",
            "../0.wav",
            "/etc/passwd",
            "file:///etc/passwd",
            "zip://a::http://b",
            "http://[",
            "ftp://x/y.wav",
            "\0",
        ]
    ),
)
NESTED = st.recursive(
    ODD, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
)
KEYS = st.sampled_from([name for names in NAMES.values() for name in names] + ["shard_id"])
LINES = st.one_of(
    st.dictionaries(KEYS, NESTED, max_size=6),
    st.dictionaries(KEYS, ODD, max_size=4).map(lambda line: {"audio_filepath": "0.wav"} | line),
).map(json.dumps)
BAD_LINES = st.one_of(st.text(max_size=60), st.just("[" * 20_000), st.just('{"a":' * 20_000))


@st.composite
def list_attacks(draw: st.DrawFn) -> Attack:
    lines = draw(st.lists(LINES | BAD_LINES, min_size=1, max_size=5))
    ending = draw(st.sampled_from(["jsonl", "csv", "tsv", "json", "parquet", "tar"]))
    text = "\n".join(lines) if ending.startswith("json") else "path,duration,offset,id\n" + "\n".join(draw(TABLES))

    def prepare(workspace: Workspace) -> None:
        shutil.copy(workspace.corpus / "0.wav", workspace.scratch)
        (workspace.scratch / f"list.{ending}").write_bytes(text.encode(errors="surrogatepass"))

    return Attack(f"a {ending} list", ("index", f"{{scratch}}/list.{ending}", "--out", "{scratch}/out"), prepare)


CELLS = st.one_of(st.text(max_size=20), st.sampled_from(["0.wav", "1e400", "-1", "nan", '"', "\0", "x" * 140_000]))
TABLES = st.lists(st.lists(CELLS, max_size=5).map(",".join), min_size=1, max_size=5)


# JSON and TOML of runs, encoders, indexes and results

LABELLED = ("--encoder", "mfcc", "--data", "{scratch}/labelled", "--out", "{scratch}/out")
FILES: dict[str, list[tuple[str, ...]]] = {
    "run/config.toml": [("report", "{scratch}/run", "--out", "{scratch}/out"), ("pretrain", "--out", "{scratch}/run")],
    "run/run.json": [
        ("report", "{scratch}/run", "--out", "{scratch}/out"),
        ("pretrain", "--out", "{scratch}/run"),
        ("runs", "{scratch}/run"),
        ("runs", "{scratch}", "--format", "json"),
    ],
    "run/metrics.jsonl": [
        ("report", "{scratch}/run", "--out", "{scratch}/out"),
        ("watch", "{scratch}/run", "--once"),
        ("runs", "{scratch}/run"),
        ("figures", "{scratch}/run", "--out", "{scratch}/out"),
        ("analyze", "erank", "{scratch}/run", "--out", "{scratch}/out"),
        ("analyze", "clusters", "{scratch}/run", "--out", "{scratch}/out"),
        ("export", "{scratch}/run", "{scratch}/out", "--to", "hf"),
    ],
    "run/checkpoints/step-00000004/state.json": [
        ("pretrain", "--out", "{scratch}/run"),
        ("embed", "{corpus}", "--encoder", "{scratch}/run", "--what", "units", "--out", "{scratch}/out"),
    ],
    "run/encoder/config.json": [
        ("embed", "{corpus}", "--encoder", "{scratch}/run", "--out", "{scratch}/out"),
        ("cost", "--encoder", "{scratch}/run", *COST),
        ("units", "--encoder", "untrained:{scratch}/run", *LABELLED[2:], "--units", "kmeans", "--clusters", "2"),
    ],
    "run/results/results.json": [
        ("table", "{scratch}/run"),
        ("table", "{scratch}/run", "--format", "latex"),
        ("table", "{scratch}/run", "--format", "csv"),
        ("report", "{scratch}/run", "--out", "{scratch}/out"),
        ("analyze", "pareto", "{scratch}/run", "--out", "{scratch}/out"),
    ],
    "run/analysis/entropy.json": [("report", "{scratch}/run", "--out", "{scratch}/out")],
    "run/analysis/pareto.json": [("report", "{scratch}/run", "--out", "{scratch}/out")],
    "run/analysis/erank.json": [
        ("report", "{scratch}/run", "--out", "{scratch}/out"),
        ("analyze", "erank", "{scratch}/run", "--redraw"),
    ],
    "run/analysis/utterance-0.json": [("report", "{scratch}/run", "--out", "{scratch}/out")],
    "labelled/labels.jsonl": [
        ("units", *LABELLED, "--units", "kmeans", "--clusters", "2"),
        ("probe", *LABELLED),
        ("superb", "asr", *LABELLED, "--lite", "--steps", "1"),
        ("analyze", "clusters", "{run}", "--data", "{scratch}/labelled", "--out", "{scratch}/out"),
    ],
    "index/index.json": [
        ("shard", "{scratch}/index", "--out", "{scratch}/out", "--workers", "1"),
        ("index", "{corpus}", "--out", "{scratch}/index"),
    ],
    "index/audio.arrow": [("shard", "{scratch}/index", "--out", "{scratch}/out", "--workers", "1")],
    "index/files.arrow": [("shard", "{scratch}/index", "--out", "{scratch}/out", "--workers", "1")],
    "micro.toml": [
        ("config", "--preset", "{scratch}/micro.toml"),
        ("plan", "--hours", "1", "--preset", "{scratch}/micro.toml"),
    ],
} | INPUTS


def replace_node(value: Any, path: list[int], new: Any) -> Any:
    """The value with the node that a path of numbers leads to replaced, or removed if `new` is `...`."""
    if not path or not isinstance(value, dict | list) or not value:
        return new
    key = list(value)[path[0] % len(value)] if isinstance(value, dict) else path[0] % len(value)
    changed = dict(value) if isinstance(value, dict) else list(value)
    inner = replace_node(value[key], path[1:], new)
    if inner is ...:
        del changed[key]
    else:
        changed[key] = inner
    return changed


def change_text(text: str, path: list[int], new: Any, kind: str) -> str:
    """A file with one value of it replaced."""
    if kind == "toml":
        lines = text.splitlines()
        place = path[0] % len(lines)
        name = lines[place].partition("=")[0] or "x"
        lines[place] = f"{name} = {json.dumps(None if new is ... else new)}"
        return "\n".join(lines)
    if kind == "jsonl":
        lines = text.splitlines()
        place = path[0] % len(lines)
        changed = replace_node(json.loads(lines[place]), path[1:], new)
        lines[place] = "" if changed is ... else json.dumps(changed)
        return "\n".join(lines) + "\n"
    changed = replace_node(json.loads(text), path, new)
    return "" if changed is ... else json.dumps(changed)


@st.composite
def file_attacks(draw: st.DrawFn) -> Attack:
    name = draw(st.sampled_from(list(FILES)))
    arguments = draw(st.sampled_from(FILES[name]))
    kind = name.rpartition(".")[2]
    by_node = kind in ("json", "jsonl", "toml") and draw(st.integers(0, 3)) > 0
    path, new, edits = (
        draw(st.lists(st.integers(0, 200), min_size=1, max_size=5)),
        draw(NESTED | st.just(...)),
        draw(EDITS),
    )
    deep = draw(st.integers(0, 40)) == 0

    def prepare(workspace: Workspace) -> None:
        for part in {name.split("/")[0]} | ({"labelled"} if "{scratch}/labelled" in arguments else set()):
            source, target = workspace.inputs / part, workspace.scratch / part
            shutil.copytree(source, target) if source.is_dir() else shutil.copy(source, target)
        file = workspace.scratch / name
        if deep:
            file.write_text("[" * 50_000)
        elif by_node:
            file.write_text(change_text(file.read_text(), path, new, kind), errors="surrogatepass")
        else:
            file.write_bytes(damage(file.read_bytes(), edits))

    writes = "{scratch}/out"
    if arguments[0] == "pretrain" or "--redraw" in arguments:
        writes = "{scratch}/run"
    elif "--out" in arguments:
        writes = arguments[arguments.index("--out") + 1]
    return Attack(f"{name} changed", arguments, prepare, writes)


@st.composite
def weight_attacks(draw: st.DrawFn) -> Attack:
    """safetensors: the header's JSON, its length, or any bytes."""
    by_node, path = draw(st.booleans()), draw(st.lists(st.integers(0, 200), min_size=1, max_size=4))
    new, edits = draw(NESTED | st.just(...)), draw(EDITS)
    names = ("encoder/model.safetensors", "encoder/clusters.safetensors", "checkpoints/step-00000004/model.safetensors")
    name = draw(st.sampled_from(names))
    arguments = ("embed", "{corpus}/0.wav", "--encoder", "{scratch}/run", "--out", "{scratch}/out")
    what = () if name == "encoder/model.safetensors" else ("--what", "head")

    def prepare(workspace: Workspace) -> None:
        shutil.copytree(workspace.run, workspace.scratch / "run")
        file = workspace.scratch / "run" / name
        if "checkpoints" in name:  # which is read only without the clusters in the encoder's folder
            (workspace.scratch / "run" / "encoder" / "clusters.safetensors").unlink()
        content = file.read_bytes()
        size = int.from_bytes(content[:8], "little")
        if by_node:
            header = replace_node(json.loads(content[8 : 8 + size]), path, new)
            text = b"" if header is ... else json.dumps(header).encode()
            content = len(text).to_bytes(8, "little") + text + content[8 + size :]
        else:
            content = damage(content[: 8 + size], edits) + content[8 + size :]
        file.write_bytes(content)

    return Attack(f"{name} damaged", arguments + what, prepare)


# Command lines

# Out of every bound, not a number, or so small that a run with it is short.
NUMBERS = st.sampled_from(
    [
        "nan",
        "inf",
        "-inf",
        "-1",
        "0",
        "1",
        "2",
        "3",
        "8",
        "0.5",
        "1.0",
        "1e-300",
        "1e300",
        "-1e300",
        str(2**63),
        "9" * 400,
        "9" * 5000,
        "0x10",
        "",
        " ",
        "1e",
        "--",
        "None",
        "１",
        "1,2",
    ]
)
PLACES_GIVEN = [
    "{corpus}",
    "{run}",
    "{index}",
    "{preset}",
    "{corpus}/0.wav",
    "{scratch}/none",
    "/dev/null",
    "",
    "\0",
    "a" * 300,
]
PATHS = st.sampled_from(PLACES_GIVEN) | st.text(alphabet=st.characters(blacklist_categories=["Cs"]), max_size=12).map(
    lambda text: "{scratch}/" + text.replace("/", "").replace("\0", "")
)
WORDS = st.one_of(
    st.text(max_size=10), st.sampled_from(["mfcc", "last", "all", "0", "-1", "99", "{run}", "{corpus}", "tiny"])
)
# Commands that work long, also on little: they always get a word too much, and are tried for their parsing alone.
LONG = (
    "demo",
    "bench step",
    "bench gmm",
    "bench encode",
    "bench data",
    "superb",
    "analyze erank",
    "report",
    "units",
    "probe",
)


def values_of(hint: Any) -> st.SearchStrategy[str]:
    """Words for an option of a type."""
    plain = typing.get_args(hint)[0] if hasattr(hint, "__metadata__") else hint
    text = str(plain)
    if "Literal" in text:
        choices = [str(choice) for part in (plain, *typing.get_args(plain)) for choice in typing.get_args(part)]
        return st.sampled_from([choice for choice in choices if choice.isidentifier()] or ["x"]) | WORDS
    if "int" in text or "float" in text:
        return NUMBERS
    return PATHS if "Path" in text else WORDS


def options_of(kind: type[Any], prefix: str = "") -> Iterator[tuple[str, Any, bool]]:
    """Name, type and whether it is positional, of every option of a command."""
    for field in dataclasses.fields(kind):
        hint = typing.get_type_hints(kind, include_extras=True)[field.name]
        plain = typing.get_args(hint)[0] if hasattr(hint, "__metadata__") else hint
        if dataclasses.is_dataclass(plain):
            inner = prefix if field.name == "config" else f"{prefix}{field.name}."
            yield from options_of(typing.cast(type, plain), inner)
        else:
            positional = "Positional" in str(hint) or "_PositionalMarker" in str(getattr(hint, "__metadata__", ""))
            yield prefix + field.name.replace("_", "-"), hint, positional


@cache
def commands() -> dict[str, list[tuple[str, Any, bool]]]:
    """The options of every command, of `pretrain` and `config` with all settings."""
    found = {}
    for name, kind in option_classes().items():
        with_settings = add_config_options(kind, micro_config()) if name in ("pretrain", "config") else kind
        found[name] = list(options_of(with_settings))
    return found


NEEDED: dict[str, tuple[str, ...]] = {
    "pretrain": ("--preset", "{preset}", "--data", "{corpus}"),
    "config": ("--preset", "{preset}"),
    "embed": ("{corpus}/0.wav", "--encoder", "{run}"),
    "index": ("{corpus}",),
    "shard": ("{index}",),
    "plan": ("--hours", "10"),
    "export": ("{run}", "{scratch}/out", "--to", "hf"),
    "table": ("{run}",),
    "watch": ("{run}", "--once"),
    "analyze": ("{run}",),
}
WITH_OUT = ("pretrain", "embed", "index", "shard", "analyze", "table")


@st.composite
def command_attacks(draw: st.DrawFn) -> Attack:
    command = draw(st.sampled_from(list(commands())))
    first = command.split()[0]
    words = list(NEEDED.get(first, ())) if draw(st.integers(0, 4)) else []
    chosen = draw(st.lists(st.sampled_from(commands()[command]), max_size=4)) if commands()[command] else []
    for name, hint, positional in chosen:
        if name in ("out", "device", "folder"):
            continue
        value = draw(values_of(hint))
        words += (
            [value]
            if positional and draw(st.booleans())
            else [f"--{name}={value}"]
            if hint is not bool
            else [f"--{name}"]
        )
    if command in LONG or draw(st.integers(0, 9)) == 0:
        words.append(draw(st.sampled_from(["--no-such-option", "--out", "extra word", "--help", "--seed=-1", "--"])))
        if command in LONG:
            words.append("--no-such-option")
    if first in WITH_OUT:
        words += ["--out", "{scratch}/out"]
    if first == "watch":
        words.append("--once")
    # A preset or data that is large is no fault: such a command line is not tried.
    if first in ("pretrain", "demo") and option(words, "--preset") not in ("{preset}", ""):
        words.append("--no-such-option")
    return Attack("a command line", (*command.split(), *words))


ATTACKS: dict[str, st.SearchStrategy[Attack]] = {
    "audio": audio_attacks(),
    "lists": list_attacks(),
    "files": file_attacks(),
    "weights": weight_attacks(),
    "commands": command_attacks(),
}

"""Attacks by damaged files: audio, lists, JSON, TOML and safetensors."""

import io
import json
import shutil
from functools import cache
from typing import Any

import soundfile
from conftest import babble
from hostile_inputs import FILES
from hostile_workspace import Attack, Workspace
from hypothesis import strategies as st

from sjepa.data.layouts.fields import NAMES

AUDIO = {
    "wav": {"format": "WAV"},
    "flac": {"format": "FLAC"},
    "ogg": {"format": "OGG", "subtype": "VORBIS"},
    "opus": {"format": "OGG", "subtype": "OPUS"},
    "mp3": {"format": "MP3"},
}


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

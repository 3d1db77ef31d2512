"""Storage that fails while audio is indexed, packed or decoded: an outage leaves out no audio, single files may be."""

import json
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import soundfile
from conftest import babble
from served import Handler, Serve

from sjepa import cli
from sjepa.data import build, outages, shards, storage, waiting
from sjepa.data.build import build_index
from sjepa.data.index import read_labels
from sjepa.data.opening import open_corpus
from sjepa.data.shards import write_shards
from sjepa.errors import OutageError

FILES = 12
Remote = tuple[Path, type[Handler]]


@pytest.fixture
def remote(tmp_path: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> Remote:
    """A list of audio behind URLs, in parts of four, and its server."""
    (tmp_path / "served").mkdir()
    for number in range(FILES):
        soundfile.write(tmp_path / "served" / f"{number:02d}.wav", babble(1.0, number), 16_000)
    url, handler = serve(tmp_path / "served")
    lines = [json.dumps({"id": f"{number:02d}", "path": f"{url}/{number:02d}.wav"}) for number in range(FILES)]
    (tmp_path / "list.jsonl").write_text("\n".join(lines))
    monkeypatch.setattr(build, "PART", 4)
    monkeypatch.setattr(waiting, "LONGEST_WAIT", 0.05)
    monkeypatch.setattr(outages, "OUTAGE", 0.2)
    build.read_cached_header.cache_clear()
    return tmp_path / "list.jsonl", handler


def index(source: Path, out: Path) -> dict[str, Any]:
    return build_index([str(source)], out, layout="auto", max_seconds=15.0, cut_transcribed=False)


def pack(source: Path, out: Path) -> dict[str, Any]:
    return write_shards(str(source), out, encoding="flac", shard_hours=4 / 3600, seed=0, workers=1)


def ids(folder: Path) -> list[str]:
    return sorted(read_labels(str(folder))["id"].to_pylist())


def refuse_from(
    monkeypatch: pytest.MonkeyPatch, module: Any, name: str, call: int, handler: type[Handler], status: int
) -> None:
    """Let a server refuse everything from a certain call of a function on."""
    function, numbers = getattr(module, name), count(1)

    def counted(*arguments: Any) -> Any:
        if next(numbers) == call:
            handler.refuse = status
        return function(*arguments)

    monkeypatch.setattr(module, name, counted)


@pytest.mark.parametrize("status", [503, 403])
@pytest.mark.parametrize(("name", "call"), [("write_part", 1), ("read_bytes", 6)])  # between parts, and within one
def test_an_index_in_an_outage_ends_with_its_own_code_and_continues(
    remote: Remote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, name: str, call: int
) -> None:
    source, handler = remote
    out = tmp_path / "index"
    refuse_from(monkeypatch, build, name, call, handler, status)
    for _ in range(2):  # a second call during the outage changes nothing
        with pytest.raises(SystemExit) as ended:
            cli.main(["index", str(source), "--out", str(out)])
        assert ended.value.code == cli.TEMPORARY
    assert len(list((out / "parts").glob("*.arrow"))) == 1
    handler.refuse = 0
    handler.requests.clear()
    assert index(source, out)["refused"] == 0
    assert ids(out) == [f"{number:02d}" for number in range(FILES)]
    assert not {"00.wav", "03.wav"} & {request.split()[0] for request in handler.requests}  # the first part was kept


def test_an_outage_is_waited_out(
    remote: Remote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source, handler = remote
    monkeypatch.setattr(outages, "OUTAGE", 60.0)
    handler.refuse = 503
    say = outages.say

    def recover(*arguments: Any, **options: Any) -> None:
        say(*arguments, **options)
        handler.refuse = 0

    monkeypatch.setattr(outages, "say", recover)
    assert index(source, tmp_path / "index")["refused"] == 0
    assert len(ids(tmp_path / "index")) == FILES
    assert capsys.readouterr().err.count("no answer (") == 1


def test_single_files_that_a_server_does_not_serve_are_refused_by_name(remote: Remote, tmp_path: Path) -> None:
    source, handler = remote
    handler.refuse_files = {"00.wav": 403, "01.wav": 404, "06.wav": 500, "11.wav": 410}
    index(source, tmp_path / "index")
    reasons = (tmp_path / "index" / "refused.txt").read_text().splitlines()
    assert [reason.partition(": ")[0].rpartition("/")[2] for reason in reasons] == sorted(handler.refuse_files)
    assert len(ids(tmp_path / "index")) == FILES - 4


@pytest.mark.parametrize("status", [503, 403])
def test_shards_in_an_outage_continue_with_those_that_are_done(
    remote: Remote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    source, handler = remote
    index(source, tmp_path / "index")
    out = tmp_path / "shards"
    refuse_from(monkeypatch, shards, "write_part", 1, handler, status)
    with pytest.raises(OutageError, match="the same command continues"):
        pack(tmp_path / "index", out)
    done = {path.name: path.stat().st_mtime_ns for path in out.glob("*.tar")}
    assert len(done) == 1
    handler.refuse = 0
    assert pack(tmp_path / "index", out)["refused"] == 0
    assert ids(out) == ids(tmp_path / "index")
    assert {name: (out / name).stat().st_mtime_ns for name in done} == done


def test_audio_is_not_decoded_in_part_during_an_outage(remote: Remote, tmp_path: Path) -> None:
    source, handler = remote
    index(source, tmp_path / "index")
    handler.refuse_files = {"03.wav": 500}
    corpus = open_corpus(tmp_path / "index", 15.0, "memory", 1.0)
    assert [line.partition(": ")[0].rpartition("/")[2] for line in corpus.refused] == ["03.wav"]
    handler.refuse = 503
    storage.failing_urls.clear()
    with pytest.raises(OutageError, match=r"cannot be read after several tries"):
        open_corpus(tmp_path / "index", 15.0, "memory", 1.0)

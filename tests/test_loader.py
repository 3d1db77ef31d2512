"""The loader in worker processes: crashes and damaged files are reported, and too much damage ends the run."""

import copy
import json
import multiprocessing
import os
import shutil
import signal
import threading
import time
import weakref
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_runs import lines

from sjepa import UserError
from sjepa.audio.augment import AugmentConfig
from sjepa.config import Config
from sjepa.data import loader
from sjepa.data.build import build_index
from sjepa.data.corpus import Corpus, scan_folder
from sjepa.data.loader import Batch, BatchReader, copy_to_device, load
from sjepa.data.masking import MaskConfig
from sjepa.data.opening import open_corpus
from sjepa.data.sampler import BatchPlan
from sjepa.runs.folder import RunFolder
from sjepa.train.loop import pretrain
from sjepa.train.reporting import suggest_less_cropping


class Deadly(Corpus):
    """A corpus with one file that kills the process that reads it, as a broken decoder would."""

    signal = signal.SIGKILL

    def read(self, utterance: int, start: int = 0, samples: int | None = None) -> np.ndarray:
        if self.name(utterance).endswith("07.wav"):
            os.kill(os.getpid(), self.signal)
        return super().read(utterance, start, samples)


def deadly_stream(corpus: Path, kind: type[Corpus] = Deadly) -> Iterator[Batch]:
    """Batches of two worker processes, one of which reads the deadly file."""
    scanned = scan_folder(corpus, 2.0)
    deadly = kind(scanned.paths, scanned.file, scanned.start, scanned.length)
    reader = BatchReader(deadly, MaskConfig(), AugmentConfig(), seed=0, rank=0, world_size=1)
    plan = BatchPlan(deadly.length, seconds=3.0, buckets=(1.0,), seed=0)
    return load(reader, plan, (0, 0), 2, torch.device("cpu"))


@pytest.fixture
def frequent_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let torch look for dead workers more often than every 5 s."""
    get = torch.utils.data.dataloader._MultiProcessingDataLoaderIter._try_get_data
    monkeypatch.setattr(get, "__defaults__", (0.1,))


@pytest.mark.usefixtures("frequent_looks")
def test_a_worker_that_dies_is_reported_with_the_file_it_was_reading(corpus: Path) -> None:
    with pytest.raises(
        UserError,
        match=r"a process that reads audio ended with .* while it read [^,]*07\.wav\. .* the same command continues",
    ) as raised:
        list(deadly_stream(corpus))
    assert "ended with SIGKILL" in str(raised.value)
    assert not multiprocessing.active_children()  # the process would wait for them when it exits


class Terminated(Deadly):
    signal = signal.SIGTERM


class Interrupted(Deadly):
    signal = signal.SIGINT


@pytest.mark.parametrize("kind", [Terminated, Interrupted])
def test_a_worker_leaves_signals_that_stop_a_run_to_the_run(corpus: Path, kind: type[Deadly]) -> None:
    """It goes on, because the run needs batches until its step has ended."""
    with closing(deadly_stream(corpus, kind)) as batches:
        assert all(len(next(batches).waveforms) for _ in range(4))


class Faulty(Corpus):
    """A corpus whose reading fails by a fault of ours, which is not a worker's death."""

    def read(self, utterance: int, start: int = 0, samples: int | None = None) -> np.ndarray:
        raise RuntimeError("a fault at 12 in DataLoader worker")


def test_an_error_inside_a_worker_that_lives_stays_what_it_is(corpus: Path) -> None:
    with pytest.raises(RuntimeError, match="a fault at 12"):
        list(deadly_stream(corpus, Faulty))


class CutOff(torch.utils.data.DataLoader):
    """What comes of a worker that dies while it hands a batch over."""

    def __iter__(self) -> Any:
        return CutOffBatches(super().__iter__())


class CutOffBatches:
    def __init__(self, batches: Any):
        self.batches, self._shutdown_workers = batches, batches._shutdown_workers

    def __iter__(self) -> "CutOffBatches":
        return self

    def __next__(self) -> Any:
        try:
            return next(self.batches)
        except RuntimeError:
            raise EOFError from None


@pytest.mark.usefixtures("frequent_looks")
def test_a_worker_that_dies_while_it_hands_a_batch_over_is_reported_too(
    corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.utils.data, "DataLoader", CutOff)
    test_a_worker_that_dies_is_reported_with_the_file_it_was_reading(corpus)


def empty_batch() -> Batch:
    return Batch(*torch.zeros(3, 1), (0, 0), 1.0, 0.0, [])


class FailingGpu:
    """Stands for the GPU in `copy_to_device`, and counts pinned batches that are freed once it has failed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.failed, self.freed = threading.Event(), 0
        monkeypatch.setattr(loader, "cuda_stream", lambda *_: self)
        monkeypatch.setattr(torch.cuda, "stream", nullcontext)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
        monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: None)
        monkeypatch.setattr(Batch, "pin", self.pin)
        monkeypatch.setattr(Batch, "to", lambda batch, device: copy.copy(batch))

    def synchronize(self) -> None:
        if self.failed.is_set():
            raise RuntimeError("CUDA error")

    def pin(self) -> Batch:
        self.synchronize()
        pinned = empty_batch()
        weakref.finalize(pinned, self.count)
        return pinned

    def count(self) -> None:
        self.freed += self.failed.is_set()


@pytest.mark.parametrize(("seconds", "before", "after"), [(0.0, 0.3, 0.0), (0.1, 0.0, 0.3)])
def test_pinned_memory_is_kept_once_a_gpu_has_failed(
    seconds: float, before: float, after: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch aborts the process if it frees such memory then.

    The thread that copies batches waits for room, or is the first to notice.
    """
    gpu = FailingGpu(monkeypatch)

    def read() -> Generator[Batch, None, None]:
        while True:
            time.sleep(seconds)
            yield empty_batch()

    with closing(copy_to_device(read(), torch.device("cuda"))) as batches:
        next(batches)
        time.sleep(before)
        gpu.failed.set()
        time.sleep(after)
    assert gpu.freed == 0
    gpu.failed.clear()


def damaged_copy(corpus: Path, folder: Path, count: int) -> Path:
    """The corpus with files that are cut short after their headers were read."""
    shutil.copytree(corpus, folder)
    for path in sorted(folder.iterdir())[:count]:
        content = path.read_bytes()
        path.write_bytes(content[:44] + bytes(len(content) - 44))  # the header holds, the sound is gone
    return folder


def test_a_run_stops_if_more_audio_is_damaged_than_allowed(
    corpus: Path, tmp_path: Path, micro: Callable[..., Config]
) -> None:
    folder = damaged_copy(corpus, tmp_path / "audio", 3)
    lazily = {"cache": "none", "workers": 0}
    run = tmp_path / "strict"
    with pytest.raises(UserError, match=r"more than batches\.bad_share = 0\.1 allows; see .* --batches\.bad-share"):
        pretrain(micro(batches=lazily | {"bad_share": 0.1}), folder, run, show=False)
    named = (run / "refused.txt").read_text()
    assert sum(f"0{number}.wav: silence" in named for number in range(3)) == len(named.splitlines()) == 2
    assert RunFolder(run).step > 0  # nothing is lost
    lenient = micro(batches=lazily | {"bad_share": 0.5})
    assert pretrain(lenient, folder, run, show=False)  # as the message recommends
    assert pretrain(lenient, folder, tmp_path / "lenient", show=False)
    assert lines(run, "train") == lines(tmp_path / "lenient", "train")


def test_damage_counts_once_per_epoch_though_phases_have_batches_of_different_size(
    corpus: Path, tmp_path: Path, micro: Callable[..., Config]
) -> None:
    folder = damaged_copy(corpus, tmp_path / "audio", 1)
    batches = {"cache": "none", "workers": 0, "bad_share": 0.1, "seconds": 12.0, "buckets": (1.0,)}
    config = micro(batches=batches, phase1={"steps": 6}, phase2={"steps": 3, "batch_seconds": 1.0})
    assert pretrain(config, folder, tmp_path / "run", show=False)


def test_damage_in_new_audio_counts_from_its_first_step(
    corpus: Path, tmp_path: Path, micro: Callable[..., Config]
) -> None:
    """The epochs before were read from other audio."""
    lazily = {"cache": "none", "workers": 0, "bad_share": 0.3}
    run = tmp_path / "run"
    assert pretrain(micro(batches=lazily, phase2={"steps": 40}), corpus, run, show=False)
    damaged = damaged_copy(corpus, tmp_path / "audio", 8)
    (damaged / "11.wav").rename(damaged / "12.wav")
    with pytest.raises(UserError, match=r"more than batches\.bad_share = 0\.3 allows"):
        pretrain(micro(batches=lazily, phase2={"steps": 46}), damaged, run, show=False, replace_data=True)


def test_a_run_stops_if_the_rare_corpus_of_a_mix_is_damaged(
    corpus: Path, tmp_path: Path, micro: Callable[..., Config]
) -> None:
    """An epoch uses few utterances of the other corpus, so damage is compared with those."""
    rare = damaged_copy(corpus, tmp_path / "rare", 12)
    for number in range(1, 8):
        shutil.copytree(corpus, tmp_path / "common" / str(number))
    config = micro(batches={"cache": "none", "workers": 0, "bad_share": 0.2}, phase2={"steps": 20})
    with pytest.raises(UserError, match=r"more than batches\.bad_share = 0\.2 allows"):
        pretrain(config, f"{rare}=0.5,{tmp_path / 'common'}=0.5", tmp_path / "run", show=False)


@pytest.mark.parametrize("cache", ["memory", "none"])
def test_a_run_lists_all_that_it_left_out_once_with_the_reason(
    corpus: Path, tmp_path: Path, micro: Callable[..., Config], cache: str
) -> None:
    folder = damaged_copy(corpus, tmp_path / "audio", 2)
    (folder / "text.wav").write_text("not audio at all")
    config, run = micro(batches={"cache": cache, "workers": 0, "bad_share": 0.5}), tmp_path / "run"
    assert pretrain(config, folder, run, show=False)
    header, *silent = (run / "refused.txt").read_text().splitlines()
    assert header.startswith(f"{folder / 'text.wav'}: cannot be decoded")
    expected = [f"{folder / name}: silence, every sample is zero" for name in ("00.wav", "01.wav")]
    assert sorted(silent) == (expected if cache == "memory" else expected[1:])  # these few batches lack the other
    met = json.loads((RunFolder(run).checkpoint(12) / "state.json").read_text())["bad_utterances"]
    assert met > 2  # in several epochs


def test_the_list_of_what_was_left_out_is_read_once(
    corpus: Path, tmp_path: Path, micro: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have hundreds of thousands of lines, and training looks at it with every line of its log."""
    folder, run = damaged_copy(corpus, tmp_path / "audio", 2), tmp_path / "run"
    config = micro(batches={"cache": "none", "workers": 0, "bad_share": 0.5})
    read: list[Path] = []
    plain = Path.read_text

    def read_text(path: Path, *arguments: Any, **options: Any) -> str:
        read.extend([path] if path.name == "refused.txt" else [])
        return plain(path, *arguments, **options)

    monkeypatch.setattr(Path, "read_text", read_text)
    for _ in range(2):
        assert pretrain(config, folder, run, show=False)
        shutil.rmtree(RunFolder(run).checkpoint(12))
    assert len(read) == 1  # by the second process of the run; the first found no list
    assert len(set(plain(run / "refused.txt").splitlines())) == len(plain(run / "refused.txt").splitlines()) > 0


def test_crop_loss_is_the_share_of_audio_that_the_crops_left_out(
    corpus: Path, tmp_path: Path, micro: Callable[..., Config]
) -> None:
    config = micro(train={"log_every": 3}, batches={"buckets": (1.0,)})
    assert pretrain(config, corpus, tmp_path / "run", show=False)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").open()]
    lengths = scan_folder(corpus, 2.0).length
    plan = BatchPlan(lengths, seconds=4.0, buckets=(1.0,), seed=0)
    stream = plan.batches(0, 0)
    for line in (line for line in lines if line["event"] == "train"):
        available = sum(int(lengths[next(stream).utterances].sum()) for _ in range(3))
        assert line["crop_loss"] == pytest.approx(1 - 3 * 4 * 16_000 / available)
    data = lines[0]
    assert data["crop_loss"] == pytest.approx(1 - 12 * 16_000 / lengths.sum())
    assert data["padding_waste"] == 0.0


def test_cut_files_are_reported_and_the_advice_on_crops_fits_the_corpus(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    build_index([str(corpus)], tmp_path / "index", layout="auto", max_seconds=15.0, cut_transcribed=False)
    places = {"folder": str(corpus), "index": str(tmp_path / "index"), "both": f"{corpus}=1,{tmp_path / 'index'}=1"}
    opened = {name: open_corpus(place, 1.3, "none", 0.0) for name, place in places.items()}
    (tmp_path / "kaldi").mkdir()
    (tmp_path / "kaldi" / "wav.scp").write_text("".join(f"{file.stem} {file}\n" for file in corpus.glob("*.*")))
    opened["kaldi"] = open_corpus(str(tmp_path / "kaldi"), 1.3, "none", 0.0)
    folder, index, *_ = capsys.readouterr().out.splitlines()
    assert folder == "12 files, 18 utterances of at most 1.3 s, 0.00 hours"
    assert index == "12 utterances, 0.00 hours"
    advice = {name: ", ".join(suggest_less_cropping(part)) for name, part in opened.items()}
    assert {name for name, words in advice.items() if "--batches.max-seconds" in words} == {"folder", "both", "kaldi"}
    assert {name for name, words in advice.items() if "sjepa index --max-seconds" in words} == {"index", "both"}

"""The life of a run: lengthened, continued on other audio, with a history, and safe from kills while it changes."""

import json
import os
import re
import shutil
from pathlib import Path

import pytest
import safetensors.torch
import soundfile
import torch
from conftest import babble, change
from small_runs import Make, lines

from sjepa import UserError
from sjepa.cli import dispatch
from sjepa.config import Config
from sjepa.runs import history
from sjepa.runs.audio import AudioSection, audio_sections, replace_audio
from sjepa.runs.folder import RunFolder
from sjepa.runs.history import describe_stop
from sjepa.settings_file import to_toml
from sjepa.train import extend
from sjepa.train.branch import branch
from sjepa.train.loop import pretrain


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return safetensors.torch.load_file(folder / "model.safetensors")


def same(a: Path, b: Path) -> bool:
    ours, theirs = weights(a), weights(b)
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in theirs)


@pytest.fixture
def copied(finished_run: Path, tmp_path: Path) -> Path:
    """The finished run, to change."""
    return shutil.copytree(finished_run, tmp_path / "run")


def longer(micro: Make, steps: int = 10, **changes: object) -> Config:
    return micro(phase2={"steps": steps, **changes})


def test_a_run_that_lost_its_settings_says_so(copied: Path, corpus: Path) -> None:
    (copied / "config.toml").unlink()
    with pytest.raises(UserError, match=r"run has checkpoints but no config\.toml.*: restore that file"):
        dispatch(["pretrain", "--preset", "tiny", "--data", str(corpus), "--out", str(copied)])


def test_audio_that_has_changed_since_is_refused_with_what_to_do(corpus: Path, tmp_path: Path, micro: Make) -> None:
    audio, run = shutil.copytree(corpus, tmp_path / "audio"), tmp_path / "run"
    assert pretrain(micro(), audio, run, show=False, last_phase=1)
    (audio / "00.wav").unlink()
    with pytest.raises(UserError, match=r"audio has changed since .* files were added, removed or replaced"):
        pretrain(micro(), audio, run, show=False)


def test_a_lengthened_run_is_the_longer_run(
    corpus: Path, tmp_path: Path, micro: Make, copied: Path, finished_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a constant learning rate and cadences in steps, it equals a run that was planned with that length."""
    config = longer(micro, warmup=0)
    whole, short = tmp_path / "whole", tmp_path / "short"
    branch(finished_run, whole, config)
    branch(finished_run, short, micro(phase2={"warmup": 0}))
    assert pretrain(config, corpus, whole, show=False)
    assert pretrain(micro(phase2={"warmup": 0}), corpus, short, show=False)
    ended = weights(short / "encoder")
    capsys.readouterr()
    assert pretrain(config, corpus, short, show=False)
    output = capsys.readouterr().out
    assert "Phase 2: 6 -> 10 steps; schedules recomputed: at step 12 the learning rate stays 0.001\n" in output
    ours, theirs = (
        [line | {"alarms": None} for line in lines(run) if line["event"] != "clusters"] for run in (short, whole)
    )
    assert ours == theirs  # alarms and cluster lines depend on the share of the phase that is done
    assert same(short / "encoder", whole / "encoder")
    assert RunFolder(short).is_complete
    assert RunFolder(short).config() == config
    # What was there is a run of its own.
    kept = RunFolder(short / "before-step-12")
    assert f"The run as it was: {kept}" in output
    assert kept.is_complete
    assert kept.name == "short-before-step-12"
    assert kept.config() == micro(phase2={"warmup": 0})
    assert all(torch.equal(weights(kept.encoder)[name], tensor) for name, tensor in ended.items())
    assert kept.events()[-1]["step"] == 12
    assert kept.checkpoint_steps == [12]


def test_schedules_follow_the_new_length(
    corpus: Path, tmp_path: Path, micro: Make, finished_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It equals a run with the new settings that was given the checkpoint of the shorter one."""
    cosine = {"schedule": "cosine", "warmup": 0, "visible_loss_until": 0.5, "augment_until": 1.0}
    short, long = micro(phase2=cosine), longer(micro, 12, **cosine)
    branch(finished_run, tmp_path / "run", short)
    assert pretrain(short, corpus, tmp_path / "run", show=False)
    given = shutil.copytree(tmp_path / "run", tmp_path / "given")
    (given / "config.toml").write_text(to_toml(long))
    capsys.readouterr()
    assert pretrain(long, corpus, tmp_path / "run", show=False)
    old, new = short.schedule()[1].lr(11), long.schedule()[1].lr(12)
    assert f"at step 12 the learning rate rises from {old:.3g} to {new:.3g}" in capsys.readouterr().out
    assert pretrain(long, corpus, given, show=False)
    assert lines(given) == lines(tmp_path / "run")
    assert same(given / "encoder", tmp_path / "run" / "encoder")
    assert [line["lr"] for line in lines(given, "train")][12:] == [
        long.schedule()[1].lr(step) for step in range(12, 18)
    ]


def test_the_effect_of_more_steps_is_reported(micro: Make) -> None:
    half = {"steps": 100, "visible_loss_until": 0.5, "augment_until": 50, "warmup": 0}
    past, config = micro(phase2=half), micro(phase2=half | {"steps": 200})
    assert extend.describe_extension(past, config, 6 + 70) == [
        "Phase 2: 100 -> 200 steps; schedules recomputed: at step 76 the learning rate stays 0.001, visible loss is on "
        "again"
    ]
    assert extend.describe_extension(past, config, 6) == ["Phase 2: 100 -> 200 steps"]  # it has not begun
    further = change(config, phase3={"steps": 7})
    assert extend.describe_extension(config, further, 206) == ["Phase 3 is added: 7 steps"]


def test_a_phase_is_added_to_a_run_that_was_complete(
    corpus: Path, tmp_path: Path, copied: Path, finished_run: Path, micro: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    dispatch(["pretrain", "--out", str(copied), "--phase3.steps", "3", "--phase3.k", "9", "--train.device", "cpu"])
    assert "Phase 3 is added: 3 steps" in capsys.readouterr().out
    run = RunFolder(copied)
    assert run.step == run.planned_steps == 15
    dispatch(["runs", str(copied)])  # only what the new phase has otherwise than the one before it
    changed = capsys.readouterr().out.split("changed", 1)[1]
    assert re.findall(r"phase3\.\S+ None -> \S+", changed) == ["phase3.steps: None -> 3", "phase3.k: None -> 9"]
    assert lines(copied, "phase")[-1]["k"] == 9
    assert same(run.phase_encoder(2), finished_run / "encoder")
    # A branch that shares both phases is the same run.
    config = micro(phase3={"steps": 3, "k": 9})
    assert branch(finished_run, tmp_path / "branch", config) == 2
    assert RunFolder(tmp_path / "branch").step == 12
    assert pretrain(config, corpus, tmp_path / "branch", show=False)
    assert same(tmp_path / "branch" / "encoder", run.encoder)
    with pytest.raises(UserError, match="--phase9: there is no phase8"):
        dispatch(["pretrain", "--out", str(copied), "--phase9.steps", "3"])


def test_what_has_happened_cannot_change(corpus: Path, micro: Make, finished_run: Path) -> None:
    for changes, words in (
        ({"phase1": {"steps": 7}}, r"  phase1.steps was 6, now 7\nA run accepts new phases, and more steps"),
        (
            {"phase2": {"steps": 5}},
            r"  phase2.steps was 6, now 5\nA run accepts new phases, and more steps .* never fewer",
        ),
        ({"phase2": {"steps": 9, "k": 5}}, r":\n  phase2.k was 12, now 5\nTo continue the run as it is, leave out"),
    ):
        with pytest.raises(UserError, match=words):
            pretrain(micro(**changes), corpus, finished_run, show=False)


def test_a_run_that_is_continued_in_another_folder_asks_for_its_audio(
    corpus: Path, tmp_path: Path, micro: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(corpus.parent)
    assert pretrain(micro(), corpus.name, tmp_path / "run", show=False, last_phase=1)
    monkeypatch.chdir(tmp_path)
    asked = f"started with --data {corpus.name}, but {corpus.name} is not here: run this command in the same folder"
    with pytest.raises(UserError, match=asked):
        dispatch(["pretrain", "--out", "run"])
    dispatch(["pretrain", "--out", "run", "--data", str(corpus)])
    assert RunFolder("run").is_complete
    dispatch(["pretrain", "--out", "run"])  # a complete run needs no audio


def test_a_run_continues_on_other_audio_if_requested(
    corpus: Path, tmp_path: Path, copied: Path, micro: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    for index in range(6):
        soundfile.write(other / f"{index}.wav", babble(1.5, 50 + index), 16_000)
    with pytest.raises(UserError, match="--replace-data continues it on this audio"):
        pretrain(longer(micro), other, copied, show=False)
    with pytest.raises(UserError, match=r"is complete: give it more steps for the new audio, as in --phase2\.steps 12"):
        pretrain(micro(), other, copied, show=False, replace_data=True)
    assert not RunFolder(copied).earlier(12).exists()
    unbroken = shutil.copytree(copied, tmp_path / "unbroken")
    assert pretrain(longer(micro), other, unbroken, show=False, replace_data=True)
    assert f"From step 12 on, the audio is {other}; before, it was {corpus}" in capsys.readouterr().out
    run = RunFolder(unbroken)
    assert run.data == str(other)
    assert {entry["name"] for entry in run.history[-1]["changed"]} == {"phase2.steps", "data", "corpus"}
    assert [(line["step"], line["utterances"]) for line in lines(unbroken, "data")] == [(0, 12), (12, 6)]
    assert lines(unbroken, "train")[12]["epoch"] == lines(unbroken, "train")[11]["epoch"] + 1
    assert RunFolder(run.earlier(12)).data == str(corpus)
    # The model card names both, and one of a checkpoint of before that one alone.
    dispatch(["export", str(unbroken), str(tmp_path / "card"), "--to", "hf"])
    dispatch(["export", str(tmp_path / "card"), str(tmp_path / "again"), "--to", "hf"])
    dispatch(["export", str(unbroken), str(tmp_path / "before"), "--to", "hf", "--step", "12"])
    card, again, before = ((tmp_path / name / "README.md").read_text("utf-8") for name in ("card", "again", "before"))
    old, new = (f"{name} ({count} utterances, " for name, count in ((corpus, 12), (f"from step 12 on {other}", 6)))
    for text, expected in ((card, True), (again, True), (before, False)):
        assert old in text
        assert (new in text) == expected
    # A branch from the end of phase 1 goes on with the audio of phase 1.
    dispatch(["pretrain", "--out", str(tmp_path / "branch"), "--branch-from", str(unbroken), "--phase2.k", "5"])
    branched = RunFolder(tmp_path / "branch")
    assert branched.is_complete
    assert audio_sections(branched.facts) == audio_sections(RunFolder(run.earlier(12)).facts)
    # Stopped after the change and before a checkpoint, it goes on in the same way.
    assert pretrain(longer(micro), other, copied, show=False, replace_data=True)
    for step in (15, 16):
        shutil.rmtree(RunFolder(copied).checkpoint(step))
    assert pretrain(longer(micro), other, copied, show=False)
    assert lines(copied) == lines(unbroken)
    assert same(copied / "encoder", unbroken / "encoder")


def test_audio_is_known_section_by_section() -> None:
    first = {"data": "a", "corpus": "1"}
    second = first | replace_audio(first, "b", "2", 10)
    third = second | replace_audio(second, "c", "3", 25)
    assert first | replace_audio(first, "b", "2", 0) == {"data": "b", "corpus": "2"}  # no step was trained on a
    assert third | replace_audio(third, "d", "4", 25) == second | replace_audio(second, "d", "4", 25)  # nor on c
    sections = [AudioSection("a", "1", 0), AudioSection("b", "2", 10), AudioSection("c", "3", 25)]
    assert audio_sections(json.loads(json.dumps(third))) == sections
    assert [len(audio_sections(third, before=step)) for step in (0, 10, 11, 25, 26)] == [1, 1, 2, 2, 3]
    for damaged in ({"data_since": 10}, {"earlier_data": [{"data": 3}]}, {"data_since": "x"}):
        with pytest.raises(UserError, match=r"run\.json: "):
            audio_sections(third | damaged)


class Killed(BaseException):
    """What no code handles."""


def test_a_kill_while_a_run_changes_leaves_the_old_or_the_new_one(
    corpus: Path, tmp_path: Path, copied: Path, micro: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, other = longer(micro, 8), shutil.copytree(corpus, tmp_path / "other")
    soundfile.write(other / "more.wav", babble(1.5, 50), 16_000)
    reference = shutil.copytree(copied, tmp_path / "reference")
    assert pretrain(config, other, reference, show=False, replace_data=True)
    replace, link = os.replace, os.link
    seen = []
    for last in range(99):
        run = shutil.copytree(copied, tmp_path / f"run{last}")
        calls = 0

        def count(*arguments: object, then: object, last: int = last) -> None:
            nonlocal calls
            calls += 1
            if calls > last:
                raise Killed
            then(*arguments)  # type: ignore[operator]

        monkeypatch.setattr(os, "replace", lambda a, b: count(a, b, then=replace))
        monkeypatch.setattr(os, "link", lambda a, b: count(a, b, then=link))
        started = False
        try:
            with monkeypatch.context() as patch:
                # The run is changed once training begins.
                patch.setattr("sjepa.train.loop.train_phase", lambda *_: started_now())

                def started_now() -> bool:
                    nonlocal started
                    started = True
                    raise Killed

                pretrain(config, other, run, show=False, replace_data=True)
        except Killed:
            pass
        finally:
            monkeypatch.setattr(os, "replace", replace)
            monkeypatch.setattr(os, "link", link)
        found = RunFolder(run)
        new = found.config() == config
        assert new or found.config() == micro()
        assert found.data == str(other if new else corpus)
        assert found.facts.get("data_since", 0) == (12 if new else 0)
        assert ("changed" in (found.history or [{}])[-1]) == new
        if not seen or seen[-1] != new or started:  # the same state goes on in the same way
            assert pretrain(config, other, run, show=False, replace_data=True)
            assert lines(run) == lines(reference)
            assert same(run / "encoder", reference / "encoder")
            assert found.pending is None
            assert same(found.earlier(12) / "encoder", copied / "encoder")
        seen.append(new)
        shutil.rmtree(run)
        if started:
            break
    assert seen == sorted(seen)
    assert len(set(seen)) == 2


def test_every_start_and_stop_is_in_the_history(
    corpus: Path, tmp_path: Path, micro: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunFolder(tmp_path / "run")
    assert pretrain(micro(), corpus, run.path, show=False, last_phase=1)
    assert run.step == 6
    (first,) = run.history
    assert first["stopped"]["step"] == 6
    assert describe_stop(first) == "stopped"
    assert {"started", "host", "world_size", "device", "sjepa", "torch", "python", "command"} <= first.keys()
    assert pretrain(micro(), corpus, run.path, show=False, last_phase=1)  # nothing is left to do
    assert len(run.history) == 1
    assert "history" not in run.facts

    def fail(*_: object) -> None:
        raise UserError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr("sjepa.train.loop.train_step", fail)
        with pytest.raises(UserError):
            pretrain(micro(train={"keep_checkpoints": 5}), corpus, run.path, show=False)
    assert run.history[1]["stopped"] | {"time": ""} == {
        "time": "", "step": 6, "reason": "error", "message": "the disk is full"
    }  # fmt: skip
    assert run.history[1]["changed"] == [{"name": "train.keep_checkpoints", "old": 2, "new": 5}]
    assert run.config() == micro()  # which does not say where and how it is computed
    assert pretrain(micro(), corpus, run.path, show=False)
    assert [describe_stop(entry) for entry in run.history] == ["stopped", "error", "complete"]
    assert [entry["step"] for entry in run.history] == [0, 6, 6]


@pytest.mark.parametrize(("part", "step"), [("train_step", 1), ("begin_phase", 0)])  # the latter fits targets
def test_a_stop_by_a_signal_is_named(
    part: str, step: int, corpus: Path, tmp_path: Path, micro: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    import signal

    from sjepa.train import loop

    call = getattr(loop, part)
    monkeypatch.setattr(loop, part, lambda *a: (signal.raise_signal(signal.SIGTERM), call(*a)))
    assert not pretrain(micro(), corpus, tmp_path / "run", show=False)
    stop = RunFolder(tmp_path / "run").history[-1]["stopped"]
    assert (stop["reason"], stop["message"], stop["step"]) == ("stopped", "SIGTERM", step)


def test_a_history_stays_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "LONGEST", 4)
    run = RunFolder(tmp_path)
    run.facts_file.write_text(json.dumps({"data": "audio", "corpus": "x"}))
    run.config_file.write_text("seed = 1\n")
    assert run.history == []
    for step in range(6):
        changed = [("train.device", "cpu", "cuda")] if step == 1 else []
        history.record_start(run, step, {"world_size": 1}, changed)
    assert [entry["step"] for entry in run.history] == [1, 3, 4, 5]
    assert describe_stop(run.history[0]) == "killed"
    assert describe_stop(run.history[0], running=True) == "running"
    assert run.facts == {"data": "audio", "corpus": "x"}

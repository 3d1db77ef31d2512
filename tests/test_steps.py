"""Any checkpoint: kept by `train.keep_every`, evaluated with `--step`, drawn over training."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import babble

from sjepa import Encoder
from sjepa.analysis.restored_run import RestoredRun
from sjepa.cli import dispatch
from sjepa.config import Config
from sjepa.errors import UserError
from sjepa.evaluate.upstream import Upstream, check_frozen, describe_encoder, load_upstream
from sjepa.model import formats
from sjepa.model.formats import fingerprint
from sjepa.runs.folder import RunFolder
from sjepa.train.loop import pretrain

pytest.importorskip("sklearn")


@pytest.fixture(scope="module")
def run(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from conftest import micro_config

    folder = tmp_path_factory.mktemp("steps") / "mine"
    config = micro_config(train={"checkpoint_every": 2, "keep_checkpoints": 1, "keep_every": 4})
    assert pretrain(config, corpus, folder, show=False)
    return folder


def test_checkpoints_are_kept_at_multiples_and_at_the_ends_of_phases(run: Path) -> None:
    assert RunFolder(run).checkpoint_steps == [12, 8, 6, 4]


def test_a_spacing_that_meets_no_checkpoint_is_refused(micro: Callable[..., Config]) -> None:
    with pytest.raises(UserError, match=r"train\.keep_every = 5: checkpoints are written every 2 steps .*multiple"):
        micro(train={"checkpoint_every": 2, "keep_every": 5})


def test_the_encoder_of_a_step_is_that_of_its_checkpoint(run: Path) -> None:
    newest, last, early = load_upstream(str(run)), *(load_upstream(str(run), step=step) for step in (12, 4))
    assert newest.fingerprint == last.fingerprint != early.fingerprint
    end = load_upstream(str(RunFolder(run).phase_encoder(1)))
    assert load_upstream(str(run), step=6).fingerprint == end.fingerprint
    assert early.name == "mine-step-4"
    assert describe_encoder(early)["step"] == 4
    assert "step" not in describe_encoder(newest)


def test_the_weights_are_hashed_once_by_loading_and_once_by_the_check(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed: list[str] = []

    def count(weights: dict[str, torch.Tensor]) -> str:
        hashed.append(formats_hash(weights))
        return hashed[-1]

    formats_hash = formats.fingerprint_weights
    monkeypatch.setattr(formats, "fingerprint_weights", count)
    upstream = load_upstream(str(run))
    with check_frozen(upstream) as description:
        assert hashed == [upstream.fingerprint] == [description["fingerprint"]]
    assert hashed == 2 * [upstream.fingerprint]


def test_an_encoder_that_was_changed_after_loading_has_a_fingerprint_of_its_own(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise cached features and results of the given weights would count as those of the changed ones."""
    code = f"""
import torch
from sjepa import Encoder

class Tuned(Encoder):
    def forward(self, waveforms):
        return list(super().forward(waveforms).hidden_states)

def tuned():
    encoder = Tuned.from_pretrained({str(run)!r})
    with torch.no_grad():
        encoder.encoder.layer_norm.weight.mul_(2.0)
    return encoder
"""
    (tmp_path / "tuned_encoders.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    upstream = load_upstream("tuned_encoders:tuned")
    with check_frozen(upstream):
        assert upstream.fingerprint != load_upstream(str(run)).fingerprint


def test_steps_that_are_not_there_are_refused(run: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--step 5: .* has no checkpoint of that step, only of 4, 6, 8, 12;"):
        load_upstream(str(run), step=5)
    with pytest.raises(UserError, match=r"--step 5: mfcc is not a run of `sjepa pretrain`"):
        load_upstream("mfcc", step=5)
    with pytest.raises(UserError, match=r"--step 5: .* is not a run of `sjepa pretrain`"):
        dispatch(["embed", "--encoder", str(tmp_path), "--out", str(tmp_path / "o"), "--step", "5", str(tmp_path)])


def test_export_embed_units_and_analyses_take_a_step(run: Path, labelled: Path, tmp_path: Path) -> None:
    dispatch(["export", str(run), str(tmp_path / "hf"), "--to", "hf", "--step", "8"])
    wanted = load_upstream(str(run), step=8)
    assert fingerprint(Encoder.from_pretrained(tmp_path / "hf")) == wanted.fingerprint
    assert "8 of 12" in (tmp_path / "hf" / "README.md").read_text()
    file = min(labelled.glob("*.wav"))
    dispatch(["embed", str(file), "--encoder", str(run), "--out", str(tmp_path / "e"), "--step", "8"])
    import soundfile

    samples, _ = soundfile.read(file, dtype="float32")
    features = np.load(tmp_path / "e" / f"{file.name}.npz")["features"]
    torch.testing.assert_close(torch.from_numpy(features), wanted.extract([samples])[0][-1], atol=1e-4, rtol=1e-3)
    units = ["units", "--encoder", str(run), "--data", str(labelled), "--step", "8", "--out", str(tmp_path / "u")]
    dispatch(units)  # the cluster head of the same checkpoint
    assert json.loads((tmp_path / "u" / "results.json").read_text())["encoder"]["step"] == 8
    assert RestoredRun(run, step=4).about["step"] == 4
    assert next(RestoredRun(run, step=4)(babble(0.5, 0))).masked.shape[1] == 8
    dispatch(["analyze", "clusters", str(run), "--data", str(labelled), "--step", "4"])
    assert (run / "analysis" / "step-4" / "clusters.json").is_file()


def test_progress_is_drawn_from_every_checkpoint(
    run: Path, labelled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    empty = ["analyze", "progress", str(run)]
    with pytest.raises(UserError, match="has no results of its checkpoints: give --data to probe them all"):
        dispatch(empty)
    dispatch([*empty, "--data", str(labelled), "--frames", "200"])
    found = json.loads((run / "analysis" / "progress.json").read_text())
    curve = next(c for c in found["curves"] if c["name"] == "phoneme linear, random frames")
    assert [step for step, _ in curve["points"]] == [4, 6, 8, 12]
    assert (run / "analysis" / "progress.svg").is_file()
    capsys.readouterr()
    task = ["superb", "asr", "--encoder", str(run), "--data", str(labelled), "--lite", "--steps", "1", "--step", "8"]
    dispatch(task)
    assert (run / "results" / "superb" / "mine-step-8" / f"asr-{labelled.name}-lite" / "results.json").is_file()
    dispatch([*empty, "--data", str(labelled), "--frames", "200"])
    assert "Step 4 was probed before" in capsys.readouterr().out
    found = json.loads((run / "analysis" / "progress.json").read_text())
    errors = [c for c in found["curves"] if c["better"] == "lower"]
    assert [[step for step, _ in c["points"]] for c in errors] == [[8], [8]]
    # Another corpus does not replace the results of the first one.
    other, curves = shutil.copytree(labelled, tmp_path / "other"), len(found["curves"])

    def fake_probes(upstream: Upstream, corpus: object, where: str, labels: str, **_: object) -> dict[str, Any]:
        layers = {"layer 1": {"phoneme linear, random frames": {"mean": 5.0, "deviation": 0.0}}}
        return {"task": "probe", "corpus": where, "encoder": describe_encoder(upstream), "layers": layers}

    with monkeypatch.context() as patch:
        patch.setattr("sjepa.evaluate.probing.run_probes", fake_probes)
        dispatch([*empty, "--data", str(other), "--frames", "200"])
    found = json.loads((run / "analysis" / "progress.json").read_text())
    assert len(found["curves"]) == curves + 1
    assert "phoneme linear, random frames, labelled speech (other): 5.0 at step 4" in capsys.readouterr().out
    assert curve in found["curves"]

"""Curves of `sjepa analyze progress`: one measurement each, averaged over seeds."""

import json
from pathlib import Path

from pages import make_events, make_run

from sjepa.analysis.progress import analyse_progress


def probe(run: Path, step: int, mean: float, *, frames: int = 400, seed: int = 0) -> None:
    """What `sjepa analyze progress --frames FRAMES --seed SEED` leaves for a checkpoint."""
    data = {"utterances": 90, "phone_utterances": frames // 20 + seed}
    encoder = {"name": f"mine-step-{step}", "parameters": 1, "fingerprint": str(step), "states": 3, "step": step}
    layers = {"layer 1": {"phone": {"mean": mean, "deviation": 0.5}}}
    found = {"task": "probe", "corpus": "c", "encoder": encoder, "layers": layers, "data": data}
    folder = run / "results" / f"{step}-{frames}-{seed}"
    folder.mkdir(parents=True)
    (folder / "results.json").write_text(json.dumps(found | {"seed": seed, "requested_frames": frames}))


def curves(run: Path) -> dict[tuple[str, str], list[list[float]]]:
    return {(curve["name"], curve["corpus"]): curve["points"] for curve in analyse_progress(run)["curves"]}


def test_other_frames_are_another_curve_and_seeds_are_averaged(tmp_path: Path) -> None:
    run = make_run(tmp_path / "mine", make_events())
    for step, mean in ((10, 40.0), (20, 60.0)):
        probe(run, step, mean)
        probe(run, step, mean + 2, seed=1)
    probe(run, 20, 80.0, frames=900)
    assert curves(run) == {
        ("phone", "c, phones of about 400 frames"): [[10, 41.0], [20, 61.0]],
        ("phone", "c, phones of about 900 frames"): [[20, 80.0]],
    }


def test_another_precision_is_another_curve_at_all_steps(tmp_path: Path) -> None:
    """The settings that differ are named for all checkpoints, also for one that has a single result."""
    run = make_run(tmp_path / "mine", make_events())
    for step in (10, 20):
        probe(run, step, 40.0 + step)
        file = run / "results" / f"{step}-400-0" / "results.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"precision": "fp32"}))
    probe(run, 20, 10.0, seed=1)
    file = run / "results" / "20-400-1" / "results.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"precision": "bf16"}))
    data = "c, phones of about 400 frames"
    assert curves(run) == {
        ("phone (precision fp32)", data): [[10, 50.0], [20, 60.0]],
        ("phone (precision bf16)", data): [[20, 10.0]],
    }

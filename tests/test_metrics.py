"""Logged metrics, compared with a slow computation, and the alarms."""

import itertools
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from sjepa.runs.alarms import Alarm, find_alarms, read_alarms, select_new
from sjepa.runs.folder import RunFolder
from sjepa.train.loss import frame_sums
from sjepa.train.metrics import Log, Meter

HEALTHY: dict[str, Any] = {
    "phase": 2, "target_perplexity": 60.0, "target_entropy": 0.8, "accuracy_masked": 0.2, "accuracy_visible": 0.5,
    "dead_components": 3, "skipped_steps": 0, "visible_loss": True, "decay": 0.999,
}  # fmt: skip


def test_the_meter_equals_slow_sums_over_frames_and_steps() -> None:
    g = torch.Generator().manual_seed(0)
    meter = Meter(6, torch.device("cpu"))
    slow: dict[str, list[float]] = {name: [] for name in ("kl1", "kl0", "hit1", "hit0", "hq", "hp1")}
    mean_q, losses = torch.zeros(6), []
    for step in range(3):
        q, logits = torch.softmax(2 * torch.randn(2, 5, 6, generator=g), -1), torch.randn(2, 5, 6, generator=g)
        mask = torch.rand(2, 5, generator=g) < 0.6
        _, _, sums = frame_sums(q, logits, mask)
        meter.add(sums, q.sum((0, 1)), torch.tensor(float(step)), torch.tensor(2.0 + step), torch.tensor(True))
        losses.append(step)
        for b in range(2):
            for t in range(5):
                p = torch.softmax(logits[b, t], -1)
                m = int(mask[b, t])
                slow[f"kl{m}"].append(float((q[b, t] * (q[b, t] / p).log()).sum()))
                slow[f"hit{m}"].append(float(q[b, t].argmax() == p.argmax()))
                slow["hq"].append(-float((q[b, t] * q[b, t].log2()).sum()))
                mean_q += q[b, t]
                if m:
                    slow["hp1"].append(-float((p * p.log2()).sum()))
    values = meter.read()
    mean = {name: sum(numbers) / len(numbers) for name, numbers in slow.items()}
    expected = {
        "kl_masked": mean["kl1"], "kl_visible": mean["kl0"],
        "accuracy_masked": mean["hit1"], "accuracy_visible": mean["hit0"],
        "target_entropy": mean["hq"], "predictor_entropy": mean["hp1"], "loss": sum(losses) / 3, "gradient_norm": 3.0,
    }  # fmt: skip
    for name, value in expected.items():
        assert values[name] == pytest.approx(value, abs=1e-5), name
    share = mean_q / mean_q.sum()
    assert values["target_perplexity"] == pytest.approx(math.exp(-float((share * share.log()).sum())), rel=1e-5)
    assert meter.read()["kl_masked"] == 0.0


def test_dead_components_are_those_with_hardly_any_mass() -> None:
    meter = Meter(10, torch.device("cpu"))
    q = torch.zeros(1, 100, 10)
    q[..., :7] = 1 / 7
    meter.add(torch.zeros(8), q.sum((0, 1)), torch.tensor(0.0), torch.tensor(0.0), torch.tensor(True))
    assert meter.read()["dead_components"] == 3


def test_an_interval_of_skipped_steps_shows_no_dead_components() -> None:
    assert Meter(10, torch.device("cpu")).read()["dead"] == []


def test_targets_of_a_step_that_is_not_finite_do_not_reach_the_log() -> None:
    meter = Meter(2, torch.device("cpu"))
    for occupancy, finite in ((torch.full((2,), math.nan), False), (torch.tensor([1.0, 3.0]), True)):
        meter.add(torch.zeros(8), occupancy, torch.tensor(0.0), torch.tensor(0.0), torch.tensor(finite))
    assert meter.read()["share"] == [0.25, 0.75]


def test_bad_steps_in_a_row_count_on_over_lines_and_end_with_a_good_step() -> None:
    meter, found = Meter(4, torch.device("cpu")), []
    for line in ("..x.xx.x", "xx..x...", "...", "xx", "x.x"):
        for step in line:
            finite = torch.tensor(step == ".")
            meter.add(torch.zeros(8), torch.zeros(4), torch.tensor(0.0), torch.tensor(0.0), finite)
        values = meter.read()
        found.append((values["skipped_steps"], values["bad_in_row"]))
    assert found == [(4, 2), (3, 3), (0, 0), (2, 2), (2, 3)]


@pytest.mark.parametrize(("components", "right", "alarmed"), [(1, 1.0, False), (2, 0.98, False), (2, 0.6, True)])
def test_few_components_are_learned_well_above_chance(components: int, right: float, alarmed: bool) -> None:
    values = HEALTHY | {"target_perplexity": 0.97 * components, "accuracy_masked": right, "accuracy_visible": right}
    codes = [alarm["code"] for alarm in find_alarms(values | {"target_entropy": 0.1}, components, 0.5)]
    assert ("nothing-learned" in codes) == alarmed


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        ({"target_perplexity": 1.1}, "targets-collapsed", "targets have collapsed"),
        ({"target_perplexity": 99.5, "target_entropy": 6.5}, "targets-uniform", "posteriors are nearly uniform"),
        (
            {"target_perplexity": 97.0, "accuracy_masked": 0.01, "accuracy_visible": 0.012},
            "nothing-learned",
            "nothing is learned: 1.2% of frames are predicted correctly; chance is 1.0%",
        ),
        ({"dead_components": 51}, "dead-components", "51 of 100 components are dead"),
        (
            {"accuracy_masked": 0.4, "accuracy_visible": 0.2},
            "targets-drift",
            "drift towards features that are easy to predict",
        ),
        ({"skipped_steps": 2}, "skipped-steps", "2 steps had no finite gradient"),
    ],
)
def test_each_trouble_has_its_own_alarm(change: dict[str, Any], code: str, words: str) -> None:
    assert find_alarms(HEALTHY, 100, 0.5) == []
    found = find_alarms(HEALTHY | change, 100, 0.5)
    assert [alarm["code"] for alarm in found] == [code]
    assert words in found[0]["message"]


def test_a_gpu_that_waits_for_audio_is_an_alarm() -> None:
    assert find_alarms(HEALTHY, 100, 0.5, waiting=0.05) == []
    (alarm,) = find_alarms(HEALTHY, 100, 0.5, waiting=0.3)
    assert alarm["code"] == "waiting-for-data"
    assert "waits for audio 30% of the time" in alarm["message"]


def test_masked_accuracy_that_falls_to_less_than_half_is_an_alarm() -> None:
    masked = HEALTHY["accuracy_masked"]
    assert find_alarms(HEALTHY, 100, 0.5, best_masked=1.9 * masked) == []
    (alarm,) = find_alarms(HEALTHY, 100, 0.5, best_masked=2.1 * masked)
    assert alarm["code"] == "accuracy-fell"
    assert f"({masked:.0%}, before {2.1 * masked:.0%})" in alarm["message"]
    assert find_alarms(HEALTHY | {"accuracy_masked": 0.03}, 100, 0.5, best_masked=0.1) == []  # not much was learned
    assert find_alarms(HEALTHY | {"accuracy_masked": 0.1}, 20, 0.5, best_masked=0.22) == []  # hardly more than chance


def test_predictions_at_chance_are_no_alarm_early_in_a_phase() -> None:
    values = HEALTHY | {"target_perplexity": 97.0, "accuracy_masked": 0.01, "accuracy_visible": 0.01}
    assert find_alarms(values, 100, 0.05) == []


def test_an_alarm_that_lasts_is_new_once_and_again_after_it_was_gone() -> None:
    dead: Alarm = {"code": "dead-components", "message": "dead"}
    one, two, three = ({"code": "skipped-steps", "message": f"{n} steps were skipped"} for n in (1, 2, 3))
    lines = [[], [two], [three, dead], [dead], [one, dead]]
    news = [select_new(found, before) for before, found in itertools.pairwise(lines)]
    assert news == [[two], [dead], [], [one]]


def test_a_line_without_alarms_has_none() -> None:
    drift: Alarm = {"code": "targets-drift", "message": "they drift"}
    assert read_alarms({"alarms": [drift]}) == [drift]
    assert read_alarms({}) == read_alarms({"alarms": None}) == []


def test_visible_frames_that_are_not_in_the_loss_raise_no_alarm_and_nor_do_targets_that_stay() -> None:
    values = HEALTHY | {"accuracy_masked": 0.4, "accuracy_visible": 0.2}
    assert find_alarms(values | {"visible_loss": False}, 100, 0.5) == []
    assert find_alarms(values | {"decay": None}, 100, 0.5) == []


def test_weights_and_biases_gets_the_numbers_of_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    logged: list[tuple[dict[str, float], int]] = []
    import wandb

    log_to = wandb.Run.log
    monkeypatch.setattr(
        wandb.Run, "log", lambda self, data, step: logged.append((data, step)) or log_to(self, data, step=step)
    )
    log = Log(RunFolder(tmp_path), 0, 0, wandb_project="tests")
    log.write("train", 3, loss=1.5, visible_loss=True, speed={"waiting": 0.25}, rank_speed={"waiting": [0.1, 0.25]})
    log.write("layers", 3, effective_ranks=[7.0, 8.0])
    log.close()
    numbers = (
        {"train/loss": 1.5, "speed/waiting": 0.25, "speed/slowest_rank_waiting": 0.25},
        {"effective_rank/measured_0": 7.0, "effective_rank/measured_1": 8.0},
    )
    assert logged == [(found, 3) for found in numbers]
    assert list((tmp_path / "wandb").glob("offline-run-*/*.wandb"))  # written, though nothing can be reached


def test_the_log_continues_after_the_bytes_it_is_told_to_keep(tmp_path: Path) -> None:
    log = Log(RunFolder(tmp_path), 0, 0)
    log.write("train", 1, loss=1.0)
    kept = log.bytes
    log.write("train", 2, loss=2.0)
    log.close()
    (tmp_path / "metrics.jsonl").open("a").write('{"event": "train", "st')  # cut off by a kill
    log = Log(RunFolder(tmp_path), kept, 1)
    log.write("train", 2, loss=3.0)
    log.close()
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["loss"] for line in lines] == [1.0, 3.0]
    assert list((tmp_path / "tensorboard").glob("events*"))

"""The cost of encoders, compared with torch's counter on another implementation, and its columns in tables."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from sjepa import Encoder, EncoderConfig
from sjepa.cli import dispatch
from sjepa.errors import UserError
from sjepa.evaluate import cost
from sjepa.evaluate.cost import count_macs, measure_cost, measure_latency
from sjepa.evaluate.cost_files import find_costs
from sjepa.evaluate.table import build_sections
from sjepa.evaluate.tabular import to_csv, to_latex, to_markdown
from sjepa.evaluate.upstream import Upstream, load_upstream
from sjepa.model.formats import to_hugging_face

CONFIG = EncoderConfig(64, 2, 2, 128, conv_channels=16, position_kernel=16, position_groups=2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    place = tmp_path_factory.mktemp("encoder") / "small"
    Encoder(CONFIG).save_pretrained(place)
    return place


def test_our_arithmetic_is_that_of_transformers_network(folder: Path) -> None:
    transformers = pytest.importorskip("transformers")
    network = (
        transformers.HubertModel(transformers.HubertConfig(**to_hugging_face(CONFIG))).eval().requires_grad_(False)
    )

    def run(utterances: list) -> list:
        return [network(torch.from_numpy(u)[None]).last_hidden_state for u in utterances]

    theirs = Upstream("theirs", 3, 64, torch.device("cpu"), run, network)
    ours = count_macs(load_upstream(str(folder)), 3.0)
    assert ours == pytest.approx(count_macs(theirs, 3.0), rel=0.01)
    assert count_macs(load_upstream("mfcc"), 1.0) is None


def test_the_cost_of_an_encoder_is_in_the_table_with_its_scores(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "results" / "cost"
    dispatch(["cost", "--encoder", str(folder), "--seconds", "1", "--repeats", "1", "--out", str(out)])
    written = json.loads((out / "cost.json").read_text())
    assert written["cpu_ms"] > 0
    encoder = written["encoder"]
    (tmp_path / "results" / "other").mkdir()
    (tmp_path / "results" / "other" / "cost.json").write_text('{"money": 3}')
    costs = find_costs([tmp_path])
    assert list(costs) == [("small", encoder["fingerprint"])]
    basics = {"task": "er", "protocol": {"name": "full"}, "metrics": {"accuracy": 60.0}, "decoded": {}}
    sections = build_sections([basics | {"encoder": encoder}], costs=costs)
    text = to_markdown(sections)
    assert "| encoder | parameters | GMACs per s | CPU ms (1 s, 1 thread) | er accuracy" in text
    row = next(line for line in text.splitlines() if line.startswith("| small"))
    assert row.split("|")[3].strip() == f"{written['macs_per_second'] / 1e9:.2f}"
    assert "GMACs per s" in to_latex(sections)
    assert "CPU ms" in to_csv(sections)
    assert "GMACs" not in to_markdown(build_sections([basics | {"encoder": encoder}]))
    (tmp_path / "er").mkdir()
    (tmp_path / "er" / "results.json").write_text(json.dumps(basics | {"encoder": encoder}))
    dispatch(["table", str(tmp_path), "--out", str(tmp_path / "table.md")])
    assert "GMACs per s" in (tmp_path / "table.md").read_text()


def test_other_threads_and_other_weights_do_not_replace_a_cost(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ["cost", "--seconds", "1", "--encoder", str(folder)]
    for options in (["--repeats", "1"], ["--repeats", "2"], ["--repeats", "1", "--threads", "2"]):
        dispatch([*command, *options])
    (costs,) = find_costs([Path("runs")]).values()
    assert costs.keys() == {"GMACs per s", "CPU ms (1 s, 1 thread)", "CPU ms (1 s, 2 threads)"}
    assert len(list(Path("runs").rglob("cost.json"))) == 2
    file = Path("runs/cost/small-seconds-1.0/cost.json")
    file.write_text(json.dumps(json.loads(file.read_text()) | {"encoder": {"name": "small", "fingerprint": "other"}}))
    with pytest.raises(UserError, match="has results of another encoder named small: choose a folder with --out"):
        dispatch([*command, "--repeats", "1"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--seconds", "0"], "--seconds 0: it should lie between 0.1 and 3,600 seconds"),
        (["--repeats", "0"], "--repeats 0: it should be greater than 0"),
        (["--threads", "0"], "--threads 0: it should be greater than 0"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(options: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        dispatch(["cost", "--encoder", "mfcc", *options])


def test_the_latency_is_the_median_after_a_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    now, taken = 0.0, iter([9.0, 0.004, 0.001, 0.002])
    upstream = load_upstream("logmel")

    def run(utterances: Sequence[np.ndarray]) -> list[torch.Tensor]:
        nonlocal now
        now += next(taken)
        return upstream.run(utterances)

    monkeypatch.setattr(cost, "time", SimpleNamespace(perf_counter=lambda: now))
    assert measure_latency(replace(upstream, run=run), 1.0, 3, 1) == pytest.approx(2.0)


def test_features_without_a_network_have_a_latency() -> None:
    found = measure_cost(load_upstream("logmel"), 1.0, 1, 1)
    assert found["macs_per_second"] is None
    assert found["cpu_ms"] > 0

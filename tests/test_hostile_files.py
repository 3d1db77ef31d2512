"""Untrusted or damaged files of runs and encoders: the error is one line that names the file and the field."""

import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from calls import Ended, sjepa

from sjepa.config import Config
from sjepa.errors import UserError
from sjepa.evaluate.superb.state import TrainingState
from sjepa.runs.folder import RunFolder
from sjepa.train.loop import pretrain

DEEP = "[" * 100_000 + "]" * 100_000


def refused(ended: Ended, *words: str) -> None:
    assert ended.status == 2, ended.output
    *_, last = ended.output.strip().splitlines()
    assert last.startswith("sjepa: ")
    for word in words:
        assert word in last


def change(path: Path, **values: Any) -> None:
    """Replace fields of a JSON file; `...` removes one."""
    content = json.loads(path.read_text()) | values
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not ...}))


@pytest.fixture
def run(finished_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished_run, tmp_path / "run"))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("step", 10**30),
        ("step", "12"),
        ("step", ...),
        ("position", [1]),
        ("position", "ab"),
        ("ranks", [None]),
        ("phase", ...),
        ("log_bytes", -1),
        ("files", {}),
        ("files", {"../../run.json": "0"}),
        ("files", 3),
    ],
)
def test_a_damaged_state_falls_back_to_the_checkpoint_before(
    run: Path, corpus: Path, micro: Callable[..., Config], field: str, value: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    change(RunFolder(run).checkpoint(12) / "state.json", **{field: value})
    assert pretrain(micro(), corpus, run, show=False)
    output = capsys.readouterr().out
    assert "step-00000012 is damaged" in output
    assert "Continuing" in output


def test_pipes_among_the_files_of_a_run_are_not_waited_for(
    run: Path, corpus: Path, micro: Callable[..., Config], capsys: pytest.CaptureFixture[str]
) -> None:
    (run / "superb").mkdir()
    (run / "superb" / "results.json").write_text(json.dumps(RESULT))
    for name in ("results.json", "cost.json"):
        os.mkfifo(run / name)
        refused(sjepa("table", run), f"{name} is not a regular file")
        (run / name).unlink()
    for name in ("state.json", "model.safetensors"):
        file = RunFolder(run).checkpoint(12) / name
        file.unlink()
        os.mkfifo(file)
        assert pretrain(micro(), corpus, run, show=False)
        assert "step-00000012 is damaged" in capsys.readouterr().out


def test_a_state_nested_without_end_falls_back_too(run: Path, corpus: Path, micro: Callable[..., Config]) -> None:
    (RunFolder(run).checkpoint(12) / "state.json").write_text(DEEP)
    assert pretrain(micro(), corpus, run, show=False)


def test_a_checkpoint_of_an_absurd_step_does_not_make_a_run_complete(run: Path) -> None:
    shutil.copytree(RunFolder(run).checkpoint(12), run / "checkpoints" / "step-999999999999")
    assert not RunFolder(run).is_complete
    (run / "checkpoints" / f"step-{'9' * 5000}"[:250]).mkdir()
    assert RunFolder(run).checkpoint_steps[0] == 999999999999


LOGS = {
    '{"event": "train", "step": "1", "phase": 1}': "step should be a whole number",
    '{"event": "train", "phase": 1}': "step is missing",
    '{"event": "train", "step": 1, "phase": 1, "loss": "low"}': "loss should be a finite number",
    '{"event": "train", "step": 1, "phase": 1, "speed": {}}': "speed should be",
    '{"event": "train", "step": 1, "phase": 1, "alarms": [3]}': "alarms should be",
    '{"event": "train", "step": 1, "phase": 1, "loss": 1' + "0" * 400 + "}": "loss should be a finite number",
    '{"event": "phase", "step": 0, "phase": 1, "k": null, "targets": ""}': "k should be a whole number",
    '{"event": "layers", "step": 1, "smoothed": [1], "effective_ranks": ["a"]}': "effective_ranks should be",
    "[]": "is not an object",
    "null": "is not an object",
    DEEP: "is not JSON",
}


@pytest.mark.parametrize("line", LOGS, ids=lambda line: line[:60])
def test_a_log_of_other_values_is_refused_by_line_and_field(run: Path, line: str) -> None:
    log = RunFolder(run).log
    log.write_text(log.read_text() + line + "\n")
    count = len(log.read_text().splitlines())
    refused(sjepa("report", run), f"metrics.jsonl, line {count}", LOGS[line])
    refused(sjepa("watch", run, "--once"), "metrics.jsonl", LOGS[line])
    refused(sjepa("export", run, run / "out", "--to", "hf"), "metrics.jsonl", LOGS[line])


def test_a_log_without_the_start_of_a_phase_still_makes_a_page(run: Path) -> None:
    log = RunFolder(run).log
    log.write_text("".join(line for line in log.open() if '"train"' in line))
    assert sjepa("report", run).status == 0
    assert sjepa("watch", run, "--once").status == 0
    assert sjepa("export", run, run / "out", "--to", "hf").status == 0


def test_other_layers_than_before_are_one_line(run: Path) -> None:
    log = RunFolder(run).log
    log.write_text(log.read_text() + '{"event": "layers", "step": 13, "smoothed": [], "effective_ranks": []}\n')
    ended = sjepa("report", run)
    assert ended.status in (0, 2)
    assert "Traceback" not in ended.output


@pytest.mark.parametrize("content", ["\xff\xfe", DEEP, "x = 1", "a = [" * 5000, "[encoder]\nlayers = 1e400"])
def test_a_damaged_config_is_one_line(run: Path, corpus: Path, content: str) -> None:
    RunFolder(run).config_file.write_text(content, encoding="latin-1")
    refused(sjepa("pretrain", "--out", run), "config.toml")
    refused(sjepa("export", run, run / "out", "--to", "hf"), "config.toml")


@pytest.mark.parametrize("content", ["3", "[]", DEEP, "{", '{"data": {"a": 1}, "corpus": 3}'])
def test_damaged_facts_are_one_line(run: Path, content: str) -> None:
    RunFolder(run).facts_file.write_text(content)
    for call in (("report", run), ("export", run, run / "out", "--to", "hf")):
        ended = sjepa(*call)
        assert ended.status in (0, 2)
        assert "Traceback" not in ended.output


def test_a_config_that_does_not_fit_the_checkpoints_is_one_line(run: Path, corpus: Path) -> None:
    text = RunFolder(run).config_file.read_text()
    RunFolder(run).config_file.write_text(text.replace("inner_size = 64", "inner_size = 48"))
    refused(sjepa("pretrain", "--out", run), "its checkpoint does not fit config.toml")
    refused(sjepa("analyze", "entropy", run, "--data", corpus), "its checkpoint does not fit config.toml")


RESULT = {
    "task": "asr",
    "protocol": {"name": "full", "steps": 10},
    "encoder": {"name": "mine", "parameters": 1, "fingerprint": "0"},
    "metrics": {"wer": 1.0},
    "decoded": {},
}


@pytest.mark.parametrize(
    "values",
    [
        {"metrics": {"wer": "low"}},
        {"metrics": []},
        {"metrics": {"wer": 10**400}},
        {"decoded": {"paper": 3}},
        {"protocol": "full"},
        {"protocol": {"name": "lite", "steps": None}},
        {"encoder": {"name": 3, "parameters": 1, "fingerprint": "0"}},
        {"encoder": {"name": "a", "parameters": "many", "fingerprint": "0"}},
        {"encoder": {"name": "a", "parameters": 1, "fingerprint": []}},
        {"task": ["asr"]},
        {"task": "probe", "layers": {}, "corpus": "c"},
        {"task": "probe", "layers": {"last": {"phone": {"mean": 1}}}, "corpus": "c"},
        {"task": "units", "units": {"kind": 1, "clusters": 3}, "corpus": "c"},
        {"section": "nowhere"},
        {"better": {"wer": "sideways"}},
        {"data": [3]},
        {"learning_rate": "high"},
        {"dev": 3},
    ],
    ids=str,
)
def test_results_of_other_values_are_refused_by_field(tmp_path: Path, values: dict[str, Any]) -> None:
    file = tmp_path / "results.json"
    file.write_text(json.dumps(RESULT))
    assert sjepa("table", tmp_path).status == 0
    file.write_text(json.dumps(RESULT | values))
    refused(sjepa("table", tmp_path), str(file))


DAMAGED_CONFIGS: list[tuple[dict[str, Any], str]] = [
    ({"hidden_size": "wide"}, "hidden_size should be a whole number"),
    ({"hidden_size": 65536}, "weights; the limit is"),
    ({"hidden_size": 10**400}, "hidden_size should be a whole number"),
    ({"num_hidden_layers": -1}, "num_hidden_layers should be a whole number"),
    ({"num_hidden_layers": 10**9}, "layers = 1000000000"),
    ({"num_hidden_layers": 2.5}, "num_hidden_layers should be a whole number"),
    ({"intermediate_size": None}, "intermediate_size should be a whole number"),
    ({"intermediate_size": 128}, "has inner_size 128, the weights have 64"),
    ({"num_attention_heads": 0}, "heads = 0"),
    ({"num_attention_heads": 3}, "heads: 3 does not divide hidden_size 32"),
    ({"num_conv_pos_embeddings": 65536, "hidden_size": 32768, "num_hidden_layers": 1}, "weights; the limit is"),
    ({"hidden_dropout": "much"}, "hidden_dropout should be a finite number"),
    ({"hidden_dropout": 2.0}, "dropout = 2.0"),
    ({"model_type": ["hubert"]}, "model_type should be text"),
    ({"conv_dim": 3}, "conv_dim should be a list"),
    ({"conv_dim": [[1]]}, "conv_dim should be a list"),
    ({"conv_dim": [16] * 6}, "lists of the same length"),
    ({"conv_dim": [65536] * 7}, "weights; the limit is"),
    ({"conv_kernel": {"a": 1}}, "conv_kernel should be a list"),
    ({"conv_kernel": [10, 3]}, "lists of the same length"),
    ({"conv_kernel": [10**9, 3, 3, 3, 3, 2, 2]}, "conv_kernel should be a list"),
    ({"conv_dim": [], "conv_kernel": [], "conv_stride": []}, "lists of the same length"),
]


@pytest.mark.parametrize(("values", "words"), DAMAGED_CONFIGS, ids=str)
def test_a_damaged_encoder_config_is_refused(
    run: Path, labelled: Path, tmp_path: Path, values: dict[str, Any], words: str
) -> None:
    encoder = RunFolder(run).encoder
    change(encoder / "config.json", **values)
    for source in (encoder, f"untrained:{encoder}"):
        ended = sjepa("probe", "--encoder", source, "--data", labelled, "--out", tmp_path / "out")
        refused(ended, str(encoder), "config.json", words)


@pytest.mark.parametrize(
    "values", [{"hidden_size": 65536}, {"num_attention_heads": 3}, {"conv_dim": [16] * 6}], ids=str
)
@pytest.mark.parametrize("place", ["in its run", "alone"])
def test_every_command_refuses_a_damaged_encoder_config_in_the_same_words(
    run: Path, labelled: Path, tmp_path: Path, place: str, values: dict[str, Any]
) -> None:
    encoder = RunFolder(run).encoder
    if place == "alone":
        encoder = Path(shutil.copytree(encoder, tmp_path / "alone"))
    change(encoder / "config.json", **values)
    out = tmp_path / "out"
    calls: list[tuple[object, ...]] = [
        ("embed", labelled, "--encoder", encoder),
        ("probe", "--encoder", encoder, "--data", labelled),
        ("probe", "--encoder", f"untrained:{encoder}", "--data", labelled),
        ("units", "--encoder", encoder, "--data", labelled),
        ("superb", "asr", "--lite", "--encoder", encoder, "--data", labelled),
        ("pretrain", "--preset", "tiny", "--init-from", encoder, "--data", labelled),
    ]
    refusals = [sjepa(*call, "--out", out) for call in calls] + [sjepa("export", encoder, out, "--to", "hf")]
    for ended in refusals:
        refused(ended, str(encoder), "config.json")
    assert len({ended.output.strip().splitlines()[-1] for ended in refusals}) == 1
    assert not out.exists()


@pytest.mark.parametrize("kind", ["wavlm", "wav2vec2"])
@pytest.mark.parametrize("source", ["", "untrained:"])
@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"hidden_size": 65536}, "weights; the limit is"),
        ({"num_hidden_layers": 10**9}, "layers = 1000000000"),
        ({"num_attention_heads": 5}, "does not divide"),
        ({"conv_stride": [5]}, "lists of the same length"),
    ],
    ids=str,
)
def test_a_damaged_config_of_another_network_is_refused_before_it_is_built(
    tmp_path: Path, kind: str, source: str, values: dict[str, Any], words: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind} | values))
    refused(sjepa("cost", "--encoder", f"{source}{tmp_path}"), f"{tmp_path / 'config.json'}", words)


class Evil:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return (print, ("code of a stranger runs",))


@pytest.mark.parametrize("kind", ["hubert", "wavlm"])
def test_a_malicious_pickle_is_refused_without_advice_to_load_it(
    run: Path, corpus: Path, tmp_path: Path, kind: str, capfd: pytest.CaptureFixture[str]
) -> None:
    encoder = RunFolder(run).encoder
    weights = {"a": torch.zeros(1), "evil": Evil()}
    (encoder / "model.safetensors").unlink()
    torch.save(weights, encoder / "pytorch_model.bin")
    change(encoder / "config.json", model_type=kind)
    for pickled in (None, pickle.dumps(Evil())):
        if pickled:
            (encoder / "pytorch_model.bin").write_bytes(pickled)
        for call in (
            ("embed", corpus, "--out", tmp_path / "out"),
            ("probe", "--data", corpus, "--out", tmp_path / "p"),
        ):
            ended = sjepa(*call, "--encoder", encoder)
            refused(ended)
            assert "weights_only" not in ended.output
            assert "unsafe" not in ended.output.lower()
            assert "stranger runs" not in ended.printed + capfd.readouterr().out


@pytest.mark.parametrize(
    "values",
    [
        {"fingerprint": 3},
        {"utterances": "all"},
        {"utterances": 10**30},
        {"files": ...},
        {"root": ["/"]},
        {"shards": "zip"},
        {"durations": {}},
        {"durations": 3},
        {"sexes": []},
        {"hours": 10**400},
    ],
    ids=str,
)
def test_an_index_of_other_values_is_refused_by_field(corpus: Path, tmp_path: Path, values: dict[str, Any]) -> None:
    call = ("index", corpus, "--out", tmp_path / "index")
    assert sjepa(*call).status == 0
    change(tmp_path / "index" / "index.json", **values)
    if values == {"durations": {}}:
        assert sjepa(*call).status in (0, 2)
    else:
        refused(sjepa(*call), "index.json", next(iter(values)))
        refused(sjepa("shard", tmp_path / "index", "--out", tmp_path / "shards"), "index.json")


def test_analyses_of_other_values_are_one_line(run: Path) -> None:
    analysis = RunFolder(run).analysis
    analysis.mkdir()
    for name in ("entropy", "clusters", "erank", "pareto"):
        for content in ("{}", "3", '{"phones": 3, "distributions": [], "run": 1, "tasks": 4}', DEEP):
            (analysis / f"{name}.json").write_text(content)
            refused(sjepa("analyze", name, run, "--redraw"), f"{name}.json")
            ended = sjepa("report", run)
            assert ended.status in (0, 2)
            assert "Traceback" not in ended.output
        (analysis / f"{name}.json").unlink()
    (analysis / "utterance-a.json").write_text('{"name": 3}')
    refused(sjepa("report", run), "analysis")


@pytest.mark.parametrize(
    ("facts", "field"),
    [
        ({"batch": "x", "seconds": []}, "batch"),
        ({"batch": 0, "seconds": 15}, "batch"),
        ({"phase1": 3}, "phase1"),
        ({"phase2": {"audio_per_second": "fast"}}, "phase2: audio_per_second"),
    ],
    ids=str,
)
def test_a_benchmark_file_of_other_values_is_refused_by_field(
    tmp_path: Path, facts: dict[str, Any], field: str
) -> None:
    file = tmp_path / "step.json"
    file.write_text(json.dumps({"audio_per_second": 100.0} | facts))
    refused(sjepa("plan", "--hours", "1", "--throughput", file), f"{file}: {field} should be")


@pytest.mark.parametrize(
    "values",
    [{"cpu_ms": "x"}, {"seconds": 10**400}, {"macs_per_second": 10**400}, {"threads": []}, {"encoder": {"name": 3}}],
    ids=lambda values: next(iter(values)),
)
def test_costs_of_other_values_are_refused_by_field(tmp_path: Path, values: dict[str, Any]) -> None:
    (tmp_path / "results.json").write_text(json.dumps(RESULT))
    cost = {"macs_per_second": None, "threads": 1, "seconds": 10, "cpu_ms": 3.0, "encoder": {}} | values
    (tmp_path / "cost.json").write_text(json.dumps(cost))
    refused(sjepa("table", tmp_path), "cost.json", "should be")


@pytest.mark.parametrize(
    "about",
    ["3", DEEP, '{"step": 1}', '{"identity": 3}', '{"identity": {}, "step": "x"}', '{"identity": {}, "step": -1}'],
)
def test_a_damaged_head_is_refused_by_name(tmp_path: Path, about: str) -> None:
    head = torch.nn.Linear(2, 2)
    file = tmp_path / "head.safetensors"
    safetensors.torch.save_file(head.state_dict(), file, metadata={"about": about})
    with pytest.raises(UserError, match=r"head\.safetensors"):
        TrainingState.open(file, {}, head, torch.optim.Adam(head.parameters()))


def test_a_launch_without_its_closing_quote_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "sweep.toml"
    file.write_text('[sweep]\ndata = "a"\npreset = "tiny"\nlaunch = "a \'b"\n[runs.one]\n')
    refused(sjepa("sweep", file, "--list"), "sweep.launch: No closing quotation")

"""The scripts of docs/cookbook.md, run as it says on a small synthetic corpus."""

import json
import os
import re
import runpy
import shlex
import subprocess
import sys
from functools import partial
from pathlib import Path

import jiwer
import numpy as np
import pyarrow.parquet
import pytest
import torch
import transformers
from conftest import micro_config
from processes import Command, run_python, run_shell, run_sjepa

from sjepa import Encoder
from sjepa.audio.io import read_audio
from sjepa.data.synthetic import synthesise_corpus
from sjepa.settings_file import to_toml
from sjepa.train.loop import pretrain

ROOT = Path(__file__).parents[1]
COOKBOOK = (ROOT / "docs" / "cookbook.md").read_text(encoding="utf-8")
PROGRAMS = {"sjepa": run_sjepa, "python": run_python, "sh": run_shell}


@pytest.fixture(scope="module")
def kitchen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a corpus and a run, under the names that the cookbook gives them."""
    folder = tmp_path_factory.mktemp("kitchen")
    corpus = synthesise_corpus(folder / "corpus", voices=4, sentences_per_voice=10)
    config = micro_config(
        phase1={"steps": 60, "layer_check_every": 30},
        phase2={"steps": 20, "layer_check_every": 10},
        train={"checkpoint_every": 100},
    )
    assert pretrain(config, corpus, folder / "runs" / "mine", show=False)
    (folder / "examples").symlink_to(ROOT / "examples")
    return folder


def cook(kitchen: Path, recipe: str, **changes: str) -> str:
    """Run the commands of a recipe, as they stand on the page but for a few words, and give what they print."""
    section = COOKBOOK.split(f"## {recipe}\n")[1].split("\n## ")[0]
    block = re.search(r"(?:^    .+\n)+", section, re.MULTILINE)
    assert block is not None
    output = kitchen / f"{recipe}.txt"
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {"PATH": path, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    for line in block[0].splitlines():
        words = shlex.split(line, comments=True)
        program, *arguments = [part for word in words for part in shlex.split(changes.get(word, shlex.quote(word)))]
        command = Command(arguments, output, environment, partial(os.chdir, kitchen), PROGRAMS[program])
        assert command.wait() == 0, f"{line}\n{command.text}"
    return output.read_text()


def numbers(pattern: str, printed: str) -> list[float]:
    found = re.search(pattern, printed)
    assert found is not None, printed
    return [float(number) for number in found.groups()]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (["ctc_finetune.py"], "arguments are required: encoder, corpus, model"),
        (["ctc_finetune.py", ".", "corpus", "out"], "there is no config.json"),
        (["frozen_features.py", "features"], "arguments are required: labels, property"),
        (
            ["frozen_features.py", "features", "labels.jsonl", "speakr"],
            "has no speakr for 2 recordings, first a.wav; it",
        ),
        (["frozen_features.py", "features", "labels.jsonl", "speaker"], "speaker has 1 value, the rarest (amy) in 2"),
        (["frozen_features.py", "features", "broken.jsonl", "speaker"], "broken.jsonl line 1: not valid JSON"),
        (["frozen_features.py", "features", "corpus", "speaker"], "there is no file corpus"),
        (["ctc_finetune.py", "encoder", "corpus", "out"], "has 2 recordings with text: at least 10 are needed"),
        (["ctc_finetune.py", "encoder", "corpus", "out", "0"], "STEPS should be 1 or more"),
        (["units_for_lm.py", "units", "units.txt"], "units has 1 recording: at least 5 are needed"),
        (["continue_pretraining.sh", "encoder", "nowhere", "out"], "there is no audio nowhere"),
        (["frozen_features.py", "corpus", "labels.jsonl", "speaker"], "corpus holds no features as Parquet: make them"),
        (["units_for_lm.py", "corpus", "units.txt"], "corpus holds no units: make them with sjepa embed --what units"),
        (["continue_pretraining.sh", "encoder", "corpus"], "continue_pretraining.sh ENCODER AUDIO OUT [PRESET]"),
    ],
)
def test_wrong_arguments_get_a_line_and_the_usage(
    call: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "corpus").mkdir()
    np.savez(tmp_path / "corpus" / "a.wav.npz", features=np.zeros((1, 3)))
    rows = [{"path": name, "speaker": "amy"} for name in ("a.wav", "b.wav")]
    (tmp_path / "labels.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "broken.jsonl").write_text("words")
    rows = [{"path": "a.wav", "text": text} for text in ("a", "b", "", "12")]  # two of them have no letters
    (tmp_path / "corpus" / "labels.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for folder in ("encoder", "units"):
        (tmp_path / folder).mkdir()
    for name in ("config.json", "preprocessor_config.json"):
        (tmp_path / "encoder" / name).write_text("{}")
    np.savez(tmp_path / "units" / "a.wav.npz", units=np.zeros(3, np.int32))
    table = pyarrow.table({"file": ["a.wav", "b.wav"], "features": [[0.0], [1.0]]})
    pyarrow.parquet.write_table(table, tmp_path / "features")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(ROOT / "examples" / call[0]), *call[1:]])
    if call[0].endswith(".sh"):
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        code = subprocess.run(["sh", *sys.argv], env=os.environ | {"PATH": path}).returncode
    else:  # in this process, which has imported torch and transformers
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(sys.argv[0], run_name="__main__")
        code = ended.value.code
    errors = capfd.readouterr().err
    assert code == 2
    assert errors.startswith("usage: ")
    assert words in errors
    assert "Traceback" not in errors


def test_ctc_fine_tuning_lowers_the_loss_on_held_out_recordings(kitchen: Path) -> None:
    printed = cook(kitchen, "Fine-tune for speech recognition", **{"200": "20 2e-3", "hf": "hf --half"})
    before, after = numbers(r"held-out recordings: ([\d.]+) before, ([\d.]+) after", printed)
    assert after < 0.9 * before
    assert "lm_head and masked_spec_embed as missing. This is expected" in printed
    model = transformers.HubertForCTC.from_pretrained(kitchen / "models" / "asr")
    processor = transformers.Wav2Vec2Processor.from_pretrained(kitchen / "models" / "asr")
    inputs = processor(np.zeros(8_000, np.float32), sampling_rate=16_000, return_tensors="pt")
    assert model(**inputs).logits.shape[-1] == len(json.loads((kitchen / "models" / "asr" / "vocab.json").read_text()))
    assert re.search(r"Training .*20/20 ", printed)
    cer, wer = numbers(r"4 held-out recordings: CER ([\d.]+)%, WER ([\d.]+)%", printed)
    rows = [json.loads(line) for line in (kitchen / "corpus" / "labels.jsonl").read_text().splitlines()][::10]
    wanted, found = [], []
    for row in rows:
        inputs = processor(read_audio(kitchen / "corpus" / row["path"]), sampling_rate=16_000, return_tensors="pt")
        found.append(processor.batch_decode(model(**inputs).logits.argmax(-1))[0])
        wanted.append("".join(c for c in row["text"].lower() if c.isalpha() or c in " '"))
    assert cer == pytest.approx(100 * jiwer.cer(wanted, found), abs=0.06)
    assert wer == pytest.approx(100 * jiwer.wer(wanted, found), abs=0.06)


def test_frozen_features_tell_voices_apart_in_scikit_learn(kitchen: Path) -> None:
    printed = cook(kitchen, "Frozen features in scikit-learn")
    accuracy, chance = numbers(r"speaker: accuracy ([\d.]+) over 5 folds, chance ([\d.]+)", printed)
    assert chance == 0.25
    assert accuracy > 1.5 * chance


def test_units_become_lines_of_text_that_a_language_model_learns(kitchen: Path) -> None:
    printed = cook(kitchen, "Units for a speech language model", **{"units.txt": "units.txt 60"})
    learned, alone = numbers(r"perplexity on held-out recordings: ([\d.]+), by frequency alone: ([\d.]+)", printed)
    assert learned < 0.9 * alone
    assert re.search(r"Reading units .*40/40 ", printed)
    assert re.search(r"Training .*60/60 .* loss \d", printed)
    lines = (kitchen / "units.txt").read_text().splitlines()
    files = sorted((kitchen / "units").rglob("*.npz"))
    assert len(lines) == len(files) == 40
    for line, file in zip(lines, files, strict=True):
        assert line.split() == [f"u{unit}" for unit in np.load(file)["units"]]


def test_pre_training_continues_from_a_finished_encoder(kitchen: Path) -> None:
    (kitchen / "micro.toml").write_text(to_toml(micro_config(layer={"choice": 1})))
    fewer = {"half-hour": "micro.toml", "2000": "4", "10000": "4"}
    cook(kitchen, "Continue pre-training on your own domain", **fewer)

    def weights(run: str) -> torch.Tensor:
        state = Encoder.from_pretrained(kitchen / "runs" / run).state_dict()
        return torch.cat([state[name].flatten() for name in state if name.endswith("proj.weight")])

    start, end = weights("mine"), weights("domain")
    assert not torch.equal(start, end)
    assert torch.cosine_similarity(start, end, dim=0) > 0.9  # of two runs with nothing in common: about 0

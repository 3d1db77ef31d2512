"""Compare our tasks with s3prl's downstream code on the same corpora, features, head weights and batches.

    python -m venv ENV
    ENV/bin/pip install -e '.[superb,demo]'
    ENV/bin/pip install --no-deps s3prl==0.4.18 'dtw-python>=1.5' h5py lxml editdistance pandas librosa lazy_loader \
        omegaconf antlr4-python3-runtime==4.9.3 sox tqdm joblib platformdirs pooch msgpack audioread decorator
    ENV/bin/python benchmarks/s3prl_agreement.py            # all ten tasks, into benchmarks/results
    ENV/bin/python benchmarks/s3prl_agreement.py er sd      # some tasks; keeps the results of the others

The corpora are those of the tests: small synthetic ones in the original layouts. s3prl's datasets read them and make
the labels, its experts compute losses, predictions and metrics, and its optimizers take the steps. `benchmarks/
s3prl_sides.py` describes the setup and which random parts are disabled.
"""

import contextlib
import io
import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from s3prl_cases import make_asv, make_er, make_ic, make_ks, make_sd, make_sid
from s3prl_queries import compare_queries
from s3prl_sequences import make_asr, make_pr, make_sf
from s3prl_sides import Side, replace_catalyst, replace_torchaudio

from sjepa.evaluate.superb.protocol import LearningRateSearch
from sjepa.evaluate.upstream import Upstream, load_upstream
from sjepa.files import write_whole
from sjepa.model.encoder_config import EncoderConfig
from sjepa.runs.encoder import Encoder

LOSS_TOLERANCE = 1e-3  # relative, for each of the first losses
METRIC_TOLERANCE = 1e-2  # percentage points
RESULTS = Path(__file__).parent / "results" / "s3prl-agreement.json"
CASES: dict[str, Callable[[Path, Upstream], Side]] = {
    "pr": make_pr,
    "asr": make_asr,
    "ks": make_ks,
    "sid": make_sid,
    "asv": make_asv,
    "sd": make_sd,
    "ic": make_ic,
    "sf": make_sf,
    "er": make_er,
}


@dataclass
class Logger:
    """Collects the values that s3prl logs, by the last part of the name."""

    found: dict[str, float]

    def add_scalar(self, name: str, value: Any, global_step: int) -> None:
        self.found[name.split("-", 1)[-1] if "/" not in name else name.split("/")[-1]] = float(value)


def make_encoder(folder: Path) -> Upstream:
    """Make an encoder with two random layers, so with three hidden states."""
    torch.manual_seed(0)
    config = EncoderConfig(32, 2, 2, 64, conv_channels=16, position_kernel=8, position_groups=2)
    Encoder(config).save_pretrained(folder)
    return load_upstream(str(folder))


def disable_dropout(module: torch.nn.Module) -> None:
    """Disable dropout, whose random numbers depend on the batch layout."""
    for part in module.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0


def compare(side: Side, upstream: Upstream, out: Path) -> dict[str, Any]:
    """Compare the losses of the first steps and the test metrics after them."""
    task = side.task
    evaluation = LearningRateSearch(task, upstream, out)
    evaluation.measure()
    evaluation.identity = evaluation.describe()
    head = evaluation.open(0, task.recipe.lr)
    head.downstream.to(side.dtype)
    disable_dropout(head.downstream)
    disable_dropout(side.expert)
    side.copy_weights(head.downstream.head)
    optimizer = side.optimizer(task.recipe.lr)
    fold = task.folds[0]
    batches = evaluation.rank_batches(fold, 0, 0)
    ours, theirs = [], []
    side.expert.train()
    for step in range(side.steps):
        taken = [next(batches) for _ in range(task.recipe.accumulate)]
        ours.append(evaluation.step(head.downstream, head.optimizer, taken, 0, step))
        theirs.append(side.step(taken, optimizer))
    predictions = evaluation.predictions([head.downstream], fold.test)[0]
    ours_metrics = task.score_part(predictions, fold.test)
    logger = Logger({})
    with torch.no_grad(), contextlib.redirect_stdout(io.StringIO()):
        side.expert.eval()
        records = side.records()
        for utterance in side.test_order(fold.test):
            states = next(iter(evaluation.store.batches([([utterance], -1)])))[1]
            side.forward("test", [utterance], states, records)
        side.log(records, logger)
    theirs_metrics = side.metrics(logger.found)
    relative = np.abs(np.array(ours) - np.array(theirs)) / np.maximum(np.abs(theirs), 1e-6)
    metrics = {name: {"ours": ours_metrics[name], "s3prl": theirs_metrics[name]} for name in theirs_metrics}
    apart = max(abs(pair["ours"] - pair["s3prl"]) for pair in metrics.values())
    further = side.further()
    agree = [relative.max() < LOSS_TOLERANCE, apart < METRIC_TOLERANCE, side.same_parts() is not False]
    if "hypothesis" in records:
        pairs = zip(predictions, records["hypothesis"], strict=True)
        equal = sum(ours.split() == theirs.split() for ours, theirs in pairs)
        further["transcripts"] = {"tested": len(predictions), "equal": equal, "agrees": equal == len(predictions)}
    return {
        "steps": side.steps,
        "learning_rate": task.recipe.lr,
        "first_loss": {"ours": ours[0], "s3prl": theirs[0]},
        "last_loss": {"ours": ours[-1], "s3prl": theirs[-1]},
        "largest_relative_difference_of_losses": float(relative.max()),
        "relative_difference_of_losses_at_step": {
            step: float(relative[step - 1]) for step in (1, 2, 5, 10, 25, 50, 100) if step <= side.steps
        },
        "test_metrics": metrics,
        "same_parts": side.same_parts(),
        "largest_difference_of_samples": side.sample_difference(evaluation.store),
        "further": further,
        "agrees": all(agree) and all(each["agrees"] for each in further.values()),
        "scaled_down": side.scaled_down,
        "precision": str(side.dtype).removeprefix("torch."),
    }


def save_results(found: dict[str, Any], keep: bool) -> None:
    """Write the results of some tasks. `keep` keeps the past results of the others."""
    past = json.loads(RESULTS.read_text())["tasks"] if keep and RESULTS.is_file() else {}
    about = {
        "what": "s3prl 0.4.18's downstream code and ours on the same corpora, features, head weights and batches",
        "command": "python benchmarks/s3prl_agreement.py",
        "tolerance": {"losses, relative": LOSS_TOLERANCE, "metrics, percent points": METRIC_TOLERANCE},
        "versions": {name: version(name) for name in ("s3prl", "sjepa", "torch", "numpy", "dtw-python")},
        "tasks": past | found,
    }
    write_whole(RESULTS, json.dumps(about, indent=1) + "\n")


def main() -> None:
    chosen = sys.argv[1:] or [*CASES, "qbe"]
    replace_torchaudio()
    replace_catalyst()
    torch.set_num_threads(1)
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        upstream = make_encoder(root / "encoder")
        for task in chosen:
            place = root / task
            place.mkdir()
            with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
                if task == "qbe":
                    found[task] = compare_queries(place)
                else:
                    found[task] = compare(CASES[task](place, upstream), upstream, place / "ours")
            print(f"{task}: {json.dumps(found[task])}", flush=True)
            save_results(found, keep=bool(sys.argv[1:]))
    if not all(result["agrees"] for result in found.values()):
        raise SystemExit("s3prl and this package do not agree")


if __name__ == "__main__":
    main()

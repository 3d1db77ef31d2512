"""What only a GPU runs: kernels, graphs, streams, bf16. Skipped if there is no GPU, as in CI."""

import copy
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from conftest import NO_DROPOUT, change, micro_config

from sjepa.audio.mfcc import MfccConfig, mfcc
from sjepa.config import Config
from sjepa.cuda_graphs import StepGraphs
from sjepa.device import cuda_stream, describe_gpu_sharing
from sjepa.evaluate.probes import linear_probe, mlp_probe
from sjepa.model import gpu_support
from sjepa.model.encoder_config import EncoderConfig
from sjepa.model.sjepa import SJEPA
from sjepa.runs import checkpoint
from sjepa.runs.encoder import Encoder
from sjepa.runs.folder import RunFolder
from sjepa.settings_file import to_toml
from sjepa.train.compute import SideStream, compile_parts
from sjepa.train.loop import pretrain
from sjepa.train.metrics import Speed

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def on_gpu(**train: object) -> Config:
    config = micro_config(train={"device": "cuda", "checkpoint_every": 100} | train)
    return change(config, encoder=NO_DROPOUT, predictor={"dropout": 0.0})


@pytest.mark.parametrize("channels", [16, 48, 192, 512])
def test_the_encoder_is_the_same_on_a_gpu_at_any_width(channels: int) -> None:
    torch.manual_seed(0)
    config = EncoderConfig(hidden_size=32, layers=2, heads=2, inner_size=64, conv_channels=channels, position_groups=4)
    encoder, x = Encoder(config).eval(), torch.randn(2, 6000)
    expected = encoder(x).last
    weights = torch.randn_like(expected)
    gradients = torch.autograd.grad((expected * weights).sum(), list(encoder.parameters()))
    encoder = encoder.cuda()
    found = encoder(x.cuda()).last
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=1e-4)
    on_device = torch.autograd.grad((found * weights.cuda()).sum(), list(encoder.parameters()))
    largest = max(float(g.abs().max()) for g in gradients)  # some are zero but for rounding, as a key's bias always is
    for ours, reference in zip(on_device, gradients, strict=True):
        torch.testing.assert_close(ours.cpu(), reference, rtol=1e-3, atol=1e-5 * largest)


@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-3), ("bf16", 0.05)])
@pytest.mark.parametrize(("batch", "frames"), [(2, 99), (24, 299)])
def test_compiled_gradients_are_those_of_the_plain_network(
    precision: str, tolerance: float, batch: int, frames: int
) -> None:
    """At the paper's widths, where a compiler lays buffers out otherwise than at small ones.

    The larger batch has as many rows as a step of half-hour. From some size on, the compiler combines reductions.
    """
    torch.manual_seed(0)
    config = change(Config(), encoder=NO_DROPOUT | {"layerdrop": 0.0, "layers": 2}, predictor={"dropout": 0.0})
    plain = SJEPA(config.encoder, config.predictor, 100).cuda().train()
    waveforms = 0.1 * torch.randn(batch, 320 * frames + 80, device="cuda")
    mask = torch.rand(batch, frames, device="cuda") < 0.5
    weights = torch.randn(batch, frames, 100, device="cuda")

    def gradients(model: SJEPA, precision: str) -> dict[str, torch.Tensor]:
        with torch.autocast("cuda", torch.bfloat16, enabled=precision == "bf16"):
            logits = model.predict(model.encoder(waveforms, mask=mask).last, mask)
        (logits.float() * weights).mean().backward()
        return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}

    compiled = copy.deepcopy(plain)
    compile_parts(compiled.encoder)
    compiled.predict = torch.compile(compiled.predict, dynamic=False)  # type: ignore[method-assign]
    expected, found = gradients(plain, "fp32"), gradients(compiled, precision)
    assert found.keys() == expected.keys()
    for name, reference in expected.items():
        if not name.endswith("k_proj.bias"):  # softmax does not see it
            assert (found[name] - reference).norm() < tolerance * reference.norm(), name


def test_target_features_are_computed_in_fp32() -> None:
    waveforms = torch.randn(2, 16_000) * 0.1
    with torch.autocast("cuda", torch.bfloat16):
        found = mfcc(waveforms.cuda(), MfccConfig())
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.cpu(), mfcc(waveforms, MfccConfig()), rtol=1e-3, atol=2e-2)


def test_phase_2_gives_the_same_on_a_cpu_and_in_plain_and_captured_steps(corpus: Path, tmp_path: Path) -> None:
    """From one checkpoint inside phase 2, because a fit makes much of the last digit.

    Decays as fast as these let a mixture or target encoder that does not move, or moves otherwise, show in its tensors.
    """
    config = on_gpu(precision="fp32", checkpoint_every=8, keep_checkpoints=9, masked_path="both")
    config = change(config, gmm={"decay": 0.9}, ema={"fast": 0.9, "slow": 0.97}, phase2={"steps": 22})
    assert pretrain(config, corpus, tmp_path / "whole", show=False)
    ends = {}
    for name, device, compiled in (("cpu", "cpu", False), ("plain", "cuda", False), ("captured", "cuda", True)):
        run = shutil.copytree(tmp_path / "whole", tmp_path / name)
        for folder in sorted((run / "checkpoints").iterdir())[2:]:  # the end of phase 1 and two steps on stay
            shutil.rmtree(folder)
        assert pretrain(change(config, train={"device": device, "compile": compiled}), corpus, run, show=False)
        ends[name], _ = checkpoint.load(max((run / "checkpoints").iterdir()))
    for name in ("plain", "captured"):
        for part in ("model", "targets"):
            for key, expected in ends["cpu"][part].items():
                found = ends[name][part][key]
                assert key.endswith("k_proj.bias") or (found - expected).norm() <= 1e-3 * expected.norm(), (name, key)


@pytest.mark.parametrize(("optimizer", "tolerance"), [("adamw", 1e-3), ("muon", 1e-2)])
def test_steps_on_a_gpu_train_as_on_a_cpu(corpus: Path, tmp_path: Path, optimizer: str, tolerance: float) -> None:
    """Thirty large steps: a learning rate that is a tenth off changes a loss by 3 %, rounding by less than 0.01 %.

    Muon rounds more on a GPU, where its iterations are in bf16.
    """
    from small_runs import lines

    losses = {}
    for name, device, compiled in (("cpu", "cpu", False), ("plain", "cuda", False), ("captured", "cuda", True)):
        config = on_gpu(precision="fp32", device=device, compile=compiled, masked_path="both", optimizer=optimizer)
        config = change(config, phase1={"steps": 30, "lr": 4e-3, "warmup": 0})
        assert pretrain(config, corpus, tmp_path / name, show=False)
        losses[name] = [line["loss"] for line in lines(tmp_path / name, "train") if line["phase"] == 1]
    assert losses["plain"] == pytest.approx(losses["cpu"], rel=tolerance)
    assert losses["captured"] == pytest.approx(losses["cpu"], rel=tolerance)


def test_what_ends_within_a_phase_trains_the_same_in_captured_steps(corpus: Path, tmp_path: Path) -> None:
    """Where augmentation ends, and where the front end stops learning, the compiler makes other code."""
    from small_runs import lines

    losses = {}
    for compiled in (False, True):
        config = on_gpu(precision="fp32", compile=compiled)
        config = change(config, augment={"speed": 0.1, "equalizer": 6.0})
        config = change(config, phase1={"steps": 30, "warmup": 0, "augment_until": 10, "frontend_until": 20})
        assert pretrain(config, corpus, tmp_path / str(compiled), show=False)
        losses[compiled] = [line["loss"] for line in lines(tmp_path / str(compiled), "train")]
    assert losses[True] == pytest.approx(losses[False], rel=1e-3)


def test_refits_between_captured_steps_change_the_targets_of_the_next_ones(corpus: Path, tmp_path: Path) -> None:
    """A refit runs without a graph, on tensors that the graphs read."""
    from small_runs import lines

    losses = {}
    for compiled in (False, True):
        config = on_gpu(precision="fp32", compile=compiled)
        config = change(config, phase2={"steps": 24, "refit_every": 5, "ema_switch_every": 3, "dimensions": 8})
        assert pretrain(config, corpus, tmp_path / str(compiled), show=False)
        losses[compiled] = [line["loss"] for line in lines(tmp_path / str(compiled), "train")]
    assert losses[True] == pytest.approx(losses[False], rel=1e-3)


def test_recomputed_layers_can_be_captured_with_dropout(corpus: Path, tmp_path: Path) -> None:
    """Attention with dropout must not be recomputed: the random state that this takes cannot be part of a graph."""
    from small_runs import lines

    config = micro_config(train={"device": "cuda", "checkpoint_every": 100, "recompute": True})
    assert pretrain(config, corpus, tmp_path / "run", show=False)
    losses = [line["loss"] for line in lines(tmp_path / "run", "train") if line["phase"] == 1]
    assert len(losses) == 6
    assert losses[-1] < losses[0]


def test_a_lack_of_memory_during_a_capture_is_not_hidden() -> None:
    """Work of a second stream that was not joined makes the end of the capture fail too."""
    graphs = StepGraphs()
    side_stream = SideStream(torch.device("cuda"))
    sizes = iter([1, 2**50])  # the second, a petabyte, is asked for during the capture

    def work(x: torch.Tensor) -> None:
        with side_stream():
            torch.empty(next(sizes), dtype=torch.uint8, device=x.device)
        side_stream.join()

    x = torch.zeros(4, device="cuda")
    graphs.run("kind", [x], work)
    with pytest.raises(torch.OutOfMemoryError):
        graphs.run("kind", [x], work)


FAILING = """
import sys, time, torch
from sjepa import cli
from sjepa.train import loop
step = loop.train_step
def fail(run, *rest):
    step(run, *rest)
    if run.step == 3:
        time.sleep(1)  # the thread that copies batches waits for room
        torch._assert_async(torch.zeros(1, device="cuda"))
loop.train_step = fail
cli.main(sys.argv[1:])
"""


def test_a_failure_of_the_gpu_ends_a_run_in_good_order(corpus: Path, tmp_path: Path) -> None:
    """After it, even freeing memory fails, also in the thread that copies batches."""
    out, settings = tmp_path / "run", tmp_path / "settings.toml"
    settings.write_text(to_toml(on_gpu(checkpoint_every=2)))
    call = [sys.executable, "-c", FAILING, "pretrain", "--preset", settings, "--data", corpus, "--out", out]
    done = subprocess.run(call, capture_output=True, text=True)
    message = "sjepa: the GPU reported an error: device-side assert triggered; the same command continues"
    assert (done.returncode, done.stderr.splitlines()[-1]) == (75, message), done.stderr
    assert "Traceback" not in done.stderr
    assert RunFolder(out).history[-1]["stopped"]["reason"] == "error"
    assert pretrain(RunFolder(out).config(), corpus, out, show=False)


def test_streams_stay_apart_in_a_process_that_trains_many_runs() -> None:
    device = torch.device("cuda")
    of_graphs = {StepGraphs().stream for _ in range(40)}
    of_targets = {SideStream(device).stream for _ in range(40)}
    assert len(of_graphs | of_targets | {cuda_stream("copies", device)}) == 3


def test_waiting_counts_only_where_the_gpu_has_nothing_to_do() -> None:
    speed = Speed(torch.device("cuda"))
    torch.cuda._sleep(10**9)  # half a second and more
    speed.mark_launch()
    speed.count_wait(time.perf_counter() - 1.0)
    assert speed.waited == 0.0
    torch.cuda.synchronize()
    speed.count_wait(time.perf_counter() - 1.0)
    assert speed.waited >= 1.0


def test_probes_on_a_gpu_read_what_they_read_on_a_cpu() -> None:
    x = torch.randn(3001, 2, generator=torch.Generator().manual_seed(0))
    ring, half = (x.norm(dim=1) > 1.18).numpy().astype(str), (x[:, 0] > 0).numpy().astype(str)
    train, test = x[:2400], x[2400:]
    for probe, labels, margin in ((linear_probe, half, 0.005), (mlp_probe, ring, 0.02)):
        on_cpu, on_gpu = (
            probe(train.to(device), labels[:2400], test.to(device), labels[2400:]) for device in ("cpu", "cuda")
        )
        assert on_cpu > 0.95
        assert abs(on_gpu - on_cpu) < margin


def test_kernels_are_found_where_gradients_are_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_support, "_kernels", None)
    with torch.inference_mode():
        assert gpu_support.kernels_work()


def test_memory_that_another_program_holds_is_named() -> None:
    torch.zeros(1, device="cuda")
    before = describe_gpu_sharing()
    total = torch.cuda.mem_get_info()[1]
    held = f"torch.zeros({total // 4}, dtype=torch.uint8, device='cuda')"
    script = f"import torch; held = {held}; print('held', flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout
        assert other.stdout.readline() == b"held\n"
        assert describe_gpu_sharing().endswith(f"of the GPU's {total / 2**30:.0f} GiB")
        other.communicate(b"\n")
    assert describe_gpu_sharing() == before

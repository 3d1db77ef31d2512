"""GPUs without some abilities use the plain path and print one line. Failures are injected, on a CPU."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from sjepa import device
from sjepa.config import Config
from sjepa.device import choose_device, describe_gpu_sharing
from sjepa.model import gpu_support
from sjepa.train.compute import autocast, should_compile

GPU = torch.device("cuda")


@pytest.fixture(autouse=True)
def unknown(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As in a new process, before anything was tried."""
    monkeypatch.setattr(gpu_support, "_kernels", None)
    gpu_support.has_bf16.cache_clear()
    device.explain_mps.cache_clear()
    yield
    gpu_support.has_bf16.cache_clear()


def on_gpu() -> torch.Tensor:
    return cast(torch.Tensor, SimpleNamespace(is_cuda=True))


@pytest.mark.parametrize("error", [ImportError("No module named 'triton'"), RuntimeError("cc not found\nat line 3")])
def test_kernels_that_do_not_compile_are_replaced_and_nothing_is_compiled(
    error: Exception, micro: Callable[..., Config], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tried = []

    def fail() -> None:
        tried.append(1)
        raise error

    monkeypatch.setattr(gpu_support, "run_kernels", fail)
    for _ in range(3):
        assert not gpu_support.can_use_kernels(on_gpu())
        assert not should_compile(micro(), GPU)
    assert len(tried) == 1
    output = capsys.readouterr().err.splitlines()
    assert output == [
        f"GPU kernels do not compile here ({str(error).splitlines()[0]}): using plain PyTorch, which is slower"
    ]


def test_kernels_that_work_are_used_on_a_gpu_only(
    micro: Callable[..., Config], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu_support, "run_kernels", lambda: None)
    assert gpu_support.can_use_kernels(on_gpu())
    assert should_compile(micro(), GPU)
    assert not gpu_support.can_use_kernels(torch.zeros(1))
    assert not should_compile(micro(), torch.device("cpu"))
    assert not should_compile(micro(train={"compile": False}), GPU)
    assert not capsys.readouterr().err


@pytest.mark.parametrize("supported", [True, False])
def test_a_gpu_without_bf16_computes_in_fp32(
    supported: bool, micro: Callable[..., Config], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made: list[bool] = []

    class Autocast:
        def __init__(self, kind: str, dtype: torch.dtype, enabled: bool):
            made.append(enabled)

    monkeypatch.setattr(torch, "autocast", Autocast)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: supported)
    for precision in ("bf16", "bf16", "fp32"):
        autocast(micro(train={"precision": precision}), GPU)
    assert made == [supported, supported, False]
    assert capsys.readouterr().err.count("no bf16: training uses fp32") == (not supported)


def test_an_apple_gpu_is_not_used_and_this_is_reported_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    found: list[Any] = [choose_device("auto").type for _ in range(2)]
    assert found == ["cpu", "cpu"]
    assert capsys.readouterr().err.splitlines() == ["Apple's GPU (MPS) is not supported: the CPU is used"]
    assert choose_device("cpu").type == "cpu"


def test_a_lack_of_memory_is_explained_by_other_programs_if_they_hold_much_of_the_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert describe_gpu_sharing() == ""  # no GPU is in use
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (2**30, 80 * 2**30))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 30 * 2**30)
    assert describe_gpu_sharing() == "other programs use 49 of the GPU's 80 GiB"
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 78 * 2**30)  # the last GiB is CUDA's own
    assert describe_gpu_sharing() == ""

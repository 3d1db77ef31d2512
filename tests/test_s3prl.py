"""The s3prl upstream: its interface alone, and inside s3prl if it is installed."""

from pathlib import Path

import pytest
import torch

from sjepa import Encoder, EncoderConfig
from sjepa.s3prl_upstream import UpstreamExpert, register, sjepa_local


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("encoder")
    Encoder(EncoderConfig(32, 6, 2, 64, conv_channels=16, position_kernel=16, position_groups=2)).save_pretrained(
        folder
    )
    return folder


@torch.no_grad()
def test_seven_states_at_stride_320_that_do_not_depend_on_the_batch(encoder: Path) -> None:
    expert = UpstreamExpert(str(encoder), model_config=None, refresh=False).eval()
    assert expert.get_downsample_rates("hidden_states") == 320
    waveforms = [torch.randn(samples) for samples in (16_000, 9_000, 200)]  # s3prl may send less than a frame
    states = expert(waveforms)["hidden_states"]
    assert [state.shape for state in states] == [(3, 49, 32)] * 7
    alone = Encoder.from_pretrained(encoder)(waveforms[1][None]).hidden_states
    for together, single in zip(states, alone, strict=True):
        torch.testing.assert_close(together[1, : single.shape[1]], single[0], atol=2e-5, rtol=1e-4)
    assert all(torch.isfinite(state).all() for state in states)


def test_the_file_is_a_hubconf(encoder: Path) -> None:
    import sjepa.s3prl_upstream as module

    folder = encoder / "hub"
    folder.mkdir()
    (folder / "hubconf.py").write_bytes(Path(module.__file__).read_bytes())
    model = torch.hub.load(str(folder), "sjepa_local", str(encoder), source="local")
    assert len(model([torch.randn(4_000)])["hidden_states"]) == 7


@torch.no_grad()
def test_s3prl_loads_it_by_name(encoder: Path) -> None:
    if not register():
        pytest.skip("s3prl is not installed: its side of the interface was not tried")
    from s3prl.nn import Featurizer, S3PRLUpstream

    upstream = S3PRLUpstream("sjepa_local", str(encoder)).eval()
    assert upstream.num_layers == 7
    assert upstream.downsample_rates == [320] * 7
    assert upstream.hidden_sizes == [32] * 7
    waveforms, lengths = torch.randn(2, 16_000), torch.tensor([16_000, 8_000])
    states, frames = upstream(waveforms, lengths)
    assert [tuple(state.shape) for state in states] == [(2, 50, 32)] * 7  # s3prl repeats the last frame
    assert frames[0].tolist() == [50, 25]
    wanted = Encoder.from_pretrained(encoder)(waveforms[1:, :8_000]).hidden_states
    for state, single in zip(states, wanted, strict=True):
        torch.testing.assert_close(state[1, : single.shape[1]], single[0], atol=2e-5, rtol=1e-4)
    mixed, _ = Featurizer(upstream)(states, frames)
    torch.testing.assert_close(mixed, torch.stack(states).mean(0), atol=1e-5, rtol=1e-4)
    assert sjepa_local(str(encoder)).model.config.layers == 6

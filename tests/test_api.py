"""The Python API needs only torch, numpy and safetensors."""

import subprocess
import sys
from pathlib import Path

WITHOUT = """
import sys
for name in "soundfile soxr tyro rich sklearn transformers plotly tensorboard pyarrow fsspec".split():
    sys.modules[name] = None  # importing it now fails
import torch
from sjepa import DiagonalGMM, Encoder, EncoderConfig
assert EncoderConfig().hidden_size == 768
small = EncoderConfig(32, 2, 2, 64, conv_channels=16, position_kernel=16, position_groups=2)
Encoder(small).save_pretrained(sys.argv[1])
encoder = Encoder.from_pretrained(sys.argv[1])
output = encoder(torch.randn(2, 8000), torch.tensor([8000, 5000]))
assert [state.shape for state in output.hidden_states] == [(2, 24, 32)] * 3
assert output.frames.tolist() == [24, 15]
gmm = DiagonalGMM.from_parameters(torch.ones(3), torch.randn(3, 4), torch.ones(3, 4))
assert torch.allclose(gmm.posterior(torch.randn(5, 4)).sum(1), torch.ones(5))
"""


def test_encoder_and_mixture_work_without_the_other_dependencies(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_command_line_answers_before_torch_is_loaded() -> None:
    code = "import sys; from sjepa.cli import dispatch; dispatch(['--help']); assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "pretrain" in done.stdout

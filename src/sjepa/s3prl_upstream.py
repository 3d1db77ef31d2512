"""An upstream for s3prl: the hidden states of the encoder (7 at the paper's size), one frame per 320 samples.

s3prl finds upstreams by name in `s3prl.hub`, where names that end in `_local` take the path of a checkpoint. Importing
this module puts `sjepa_local` there. A copy of this file also serves as `s3prl/upstream/example/expert.py`, which s3prl
calls `customized_upstream`, and as a `hubconf.py` for `torch.hub.load(..., source="local")`.
"""

from typing import Any

import torch
from torch import Tensor, nn

from sjepa.audio.frames import RECEPTIVE_FIELD, STRIDE
from sjepa.runs.encoder import Encoder

dependencies = ["torch", "sjepa"]  # for torch.hub


class UpstreamExpert(nn.Module):
    """The interface of s3prl: takes waveforms of any lengths, returns `hidden_states`, padded to the longest."""

    def __init__(self, ckpt: str, model_config: str | None = None, **_: Any):
        super().__init__()
        self.model = Encoder.from_pretrained(ckpt)

    def get_downsample_rates(self, key: str | None = None) -> int:
        return STRIDE

    def forward(self, wavs: list[Tensor]) -> dict[str, Any]:
        lengths = torch.tensor([max(len(wav), RECEPTIVE_FIELD) for wav in wavs], device=wavs[0].device)
        padded = nn.utils.rnn.pad_sequence(wavs, batch_first=True)
        padded = nn.functional.pad(padded, (0, int(lengths.max()) - padded.shape[1]))
        states = self.model(padded, lengths).hidden_states
        return {"hidden_states": states, "last_hidden_state": states[-1]}


def sjepa_local(ckpt: str, *args: Any, **kwargs: Any) -> UpstreamExpert:
    """Load the encoder of a run, an encoder folder or a file of weights."""
    return UpstreamExpert(ckpt, *args, **kwargs)


def register() -> bool:
    """Register `sjepa_local` with s3prl. Return False if s3prl is not installed."""
    try:
        from s3prl import hub
    except ImportError:
        return False
    hub.sjepa_local = sjepa_local
    return True


register()

"""Long recordings are cut at silences, and the stretches lose nothing but digital silence."""

import numpy as np
import pytest

from sjepa.data.silence import cut_at_silences, join_voice


@pytest.mark.parametrize("seconds", [0.1, 0.5, 1.0, 15.0])
def test_a_recording_just_longer_than_the_limit_is_cut_too(seconds: float) -> None:
    limit = round(16_000 * seconds)
    for samples in (limit + 1, limit + 100, limit + 5000):
        stretches = cut_at_silences(np.ones(samples // 160), 0, samples, limit)
        assert sum(length for _, length in stretches) == samples
        assert all(0 < length <= limit for _, length in stretches)


def test_cuts_fall_into_silence() -> None:
    power = np.ones(6000)  # a minute of 10 ms
    pauses = (1000, 1730, 2600, 3900, 4700, 5500)
    for pause in pauses:
        power[pause : pause + 40] = 1e-6
    stretches = cut_at_silences(power, 0, 960_000, 240_000)
    assert sum(length for _, length in stretches) == 960_000
    assert max(length for _, length in stretches) <= 240_000
    for start, _ in stretches[1:]:
        assert any(pause <= start // 160 <= pause + 40 for pause in pauses)


def test_digital_silence_is_left_out_and_voice_beyond_the_end_is_clipped() -> None:
    power = np.ones(4500)
    power[1500:3000] = 0.0
    stretches = cut_at_silences(power, 0, 720_000, 240_000)
    assert all(power[start // 160 : (start + length) // 160].any() for start, length in stretches)
    assert join_voice([(1.0, 2.0), (5.0, 99.0), (120.0, 130.0)], 160_000, 240_000) == [
        (16_000, 16_000),
        (80_000, 80_000),
    ]

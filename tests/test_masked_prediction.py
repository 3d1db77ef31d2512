"""The predictor at every frame, each masked once, against one run of the model per frame."""

import numpy as np
import pytest
import torch
from conftest import babble, micro_config

from sjepa.model.masked_prediction import draw_passes, predict_masked
from sjepa.model.sjepa import SJEPA


@pytest.mark.parametrize(
    ("frames", "ratio", "span", "passes"),
    [(750, 0.65, 10, 2), (123, 0.3, 2, 4), (7, 0.65, 10, 2), (3, 0.3, 10, 3), (1, 0.65, 10, 1), (50, 0.0, 5, 2)],
)
def test_every_frame_is_masked_in_exactly_one_pass(frames: int, ratio: float, span: int, passes: int) -> None:
    masks = draw_passes(frames, ratio, span, seed=0)
    assert masks.shape == (passes, frames)
    assert (masks.sum(0) == 1).all()
    if frames > 1:
        assert masks.any(1).all()
        assert not masks.all(1).any()  # some context is left in each
    np.testing.assert_array_equal(masks, draw_passes(frames, ratio, span, seed=0))


def test_passes_mask_about_equal_shares_in_spans_of_training() -> None:
    masks = draw_passes(1000, 0.65, 10, seed=1)
    assert (abs(masks.mean(1) - 0.5) < 0.02).all()
    changes = np.flatnonzero(np.diff(masks[0].astype(int))) + 1
    assert len(changes) > 20
    assert len({int(place % 10) for place in changes}) == 1  # spans end at every tenth frame from some offset
    assert not np.array_equal(masks, draw_passes(1000, 0.65, 10, seed=2))


def test_batched_passes_are_what_one_run_per_frame_gives() -> None:
    """Slowly: for each frame the whole model on that pass alone, a batch of one, read at that frame."""
    config = micro_config()
    torch.manual_seed(0)
    model = SJEPA(config.encoder, config.predictor, 9).eval()
    with torch.no_grad():
        for weights in (*model.head.parameters(), *model.predictor.parameters()):
            weights.mul_(10.0)  # logits that differ
    clean = torch.from_numpy(babble(0.6, 3))[None]
    masks = torch.from_numpy(draw_passes(29, config.mask.ratio, 4, seed=0))
    found = predict_masked(model.encoder, model.predictor, model.head, clean, masks)
    assert found.shape == (29, 9)
    for t in range(29):
        (which,) = torch.nonzero(masks[:, t]).flatten().tolist()
        mask = masks[which : which + 1]
        with torch.no_grad():
            z = model.encoder(clean, mask=mask).last
            slow = model.predict(z, mask)[0, t]
            hidden = model.head(model.encoder(clean).last)[0, t]
        torch.testing.assert_close(found[t], slow, atol=1e-5, rtol=1e-4)
        assert float((found[t] - hidden).abs().max()) > 0.01  # a visible frame is another matter

"""Seeds drawn from several numbers, such as a run's seed and a step."""

import numpy as np


def seed_from(*keys: int) -> int:
    """One well-mixed seed from several numbers."""
    return int(np.random.SeedSequence(keys).generate_state(1, np.uint64)[0] >> np.uint64(1))

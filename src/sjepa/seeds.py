"""Seeds from several numbers, such as the seed of a run and a step."""

import numpy as np


def seed_from(*keys: int) -> int:
    """Combine several numbers into one seed."""
    return int(np.random.SeedSequence(keys).generate_state(1, np.uint64)[0] >> np.uint64(1))

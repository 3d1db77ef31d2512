"""Durations for people. Up to 1.5 minutes they are in seconds, up to 1.5 hours in minutes, and so on."""

from collections.abc import Sequence

Form = tuple[int, str]
"""The seconds of a unit, and the format of a number of them."""
WORDS: tuple[Form, ...] = (
    (86_400, "{:,.1f} days"),
    (3600, "{:,.1f} hours"),
    (60, "{:.1f} minutes"),
    (1, "{:.0f} seconds"),
)
AUDIO = WORDS[1:]  # amounts of audio are never given in days
SHORT: tuple[Form, ...] = ((86_400, "{:,.1f} d"), (3600, "{:.1f} h"), (60, "{:.0f} min"), (1, "{:.0f} s"))


def format_duration(seconds: float, forms: Sequence[Form] = WORDS) -> str:
    """Return a duration with its unit: `45 seconds`, `4.5 minutes`, or `5 min` with the forms SHORT."""
    seconds = max(0.0, seconds)
    size, form = next((each for each in forms if seconds >= 1.5 * each[0]), forms[-1])
    return form.format(seconds / size)

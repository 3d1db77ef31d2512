"""Durations: one owner of their units."""

from sjepa.durations import AUDIO, SHORT, format_duration

SECONDS = (-1, 45, 89, 90, 300, 5_399, 5_400, 129_599, 200_000)


def test_a_duration_has_the_largest_unit_of_which_it_has_one_and_a_half() -> None:
    words = "0 seconds, 45 seconds, 89 seconds, 1.5 minutes, 5.0 minutes, 90.0 minutes, 1.5 hours, 36.0 hours, 2.3 days"
    short = "0 s, 45 s, 89 s, 2 min, 5 min, 90 min, 1.5 h, 36.0 h, 2.3 d"
    assert ", ".join(map(format_duration, SECONDS)) == words
    assert ", ".join(format_duration(seconds, SHORT) for seconds in SECONDS) == short
    assert format_duration(7.2e6, AUDIO) == "2,000.0 hours"

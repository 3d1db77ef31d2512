"""SUPERB: small heads trained on a frozen encoder, to s3prl's protocol."""

from typing import Literal

TaskName = Literal["asr", "er", "sf", "pr", "ks", "ic", "sid", "ravdess", "coffee"]

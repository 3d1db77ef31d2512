"""espeak-ng through ctypes: text and a voice in, samples and timed phonemes out."""

import _ctypes
import ctypes
import importlib
import itertools
import re
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Literal, NamedTuple

import numpy as np

from sjepa.errors import UserError

# Constants of speak_lib.h.
ESPEAK_RATE = 22_050
EVENT_PHONEME = 7
AUDIO_SYNCHRONOUS = 2
PHONEME_EVENTS, PHONEME_IPA, DO_NOT_EXIT = 0x0001, 0x0002, 0x8000
RATE, VOLUME, PITCH, PITCH_RANGE = 1, 2, 3, 4
TEXT_IS_UTF8 = 1
HEADROOM = 50  # espeak's default volume of 100 drives some voices into its limiter
_one_at_a_time = threading.Lock()  # espeak is not re-entrant


@dataclass(frozen=True)
class Voice:
    """A speaker: an espeak-ng voice and its prosody."""

    name: str
    gender: Literal["f", "m"]
    espeak: str  # accent+variant
    pitch: int = 50  # 0 to 99
    pitch_range: int = 50  # 0 (monotone) to 99
    rate: int = 165  # words per minute, 80 to 450
    peak: float = 0.5  # amplitude of the loudest sample


class Phoneme(NamedTuple):
    """A phoneme event."""

    ipa: str  # empty for a pause
    sample: int
    text_position: int  # of its word, in characters, from 1


class _EventStruct(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int) for name in ("kind", "unique", "text_position", "length", "milliseconds", "sample")),
        ("user_data", ctypes.c_void_p),
        ("ipa", ctypes.c_char * 8),  # a union; phoneme events use this member
    ]


_Callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.POINTER(_EventStruct))


def run_espeak(text: str, voice: Voice) -> tuple[np.ndarray, list[Phoneme]]:
    """Return espeak's 16-bit samples and its phonemes.

    It runs in a thread of its own, because Ctrl-C is raised in the main thread. If it were raised in the function that
    espeak calls, ctypes would drop it, together with a piece of the audio.
    """
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(call_espeak, text, voice).result()


def call_espeak(text: str, voice: Voice) -> tuple[np.ndarray, list[Phoneme]]:
    """Do what `run_espeak` does, in this thread."""
    loader = _espeak_loader()
    chunks: list[bytes] = []
    phonemes: list[Phoneme] = []

    def collect(samples: int | None, count: int, found: Any) -> int:
        if samples and count > 0:
            chunks.append(ctypes.string_at(samples, 2 * count))
        for event in itertools.takewhile(lambda event: event.kind, (found[index] for index in itertools.count())):
            if event.kind == EVENT_PHONEME:
                phonemes.append(Phoneme(event.ipa.decode(errors="ignore"), event.sample, event.text_position))
        return 0

    callback = _Callback(collect)  # a variable keeps it alive as long as espeak may call it

    # espeak merges some pairs of words ("in the"). A no-break space keeps them apart, each with its own times.
    utf8 = re.sub(r"(?<=\w)\s(?=\w)", "\N{NO-BREAK SPACE}", text).encode()
    with _one_at_a_time:
        library = ctypes.CDLL(loader.get_library_path())
        try:
            data = loader.get_data_path()
            options = PHONEME_EVENTS | PHONEME_IPA | DO_NOT_EXIT
            if library.espeak_Initialize(AUDIO_SYNCHRONOUS, 0, data.encode(), options) != ESPEAK_RATE:
                hint = "reinstall espeakng-loader, under a shorter path if this one has over 150 characters"
                raise UserError(f"espeak-ng cannot read its data in {data}: {hint}")
            library.espeak_SetSynthCallback(callback)
            if library.espeak_SetVoiceByName(voice.espeak.encode()) != 0:
                raise UserError(f"espeak-ng has no voice {voice.espeak!r} (speaker {voice.name!r})")
            parameters = {RATE: voice.rate, VOLUME: HEADROOM, PITCH: voice.pitch, PITCH_RANGE: voice.pitch_range}
            for parameter, value in parameters.items():
                library.espeak_SetParameter(parameter, value, 0)
            library.espeak_Synth(utf8, ctypes.c_size_t(len(utf8) + 1), 0, 0, 0, TEXT_IS_UTF8, None, None)
        finally:
            library.espeak_Terminate()
            _unload(library)
    raw = np.frombuffer(b"".join(chunks), dtype=np.int16)
    if not raw.any():
        raise UserError(f"espeak-ng produces no speech for {text!r}")
    return raw, phonemes


def _unload(library: ctypes.CDLL) -> None:
    """Unload espeak, because only that resets the C statics with the phase of its pitch flutter and its gain."""
    if sys.platform == "win32":
        _ctypes.FreeLibrary(library._handle)
    else:
        _ctypes.dlclose(library._handle)


def _espeak_loader() -> ModuleType:
    try:
        return importlib.import_module("espeakng_loader")
    except ImportError:
        raise UserError("speech synthesis needs espeak-ng: pip install 'sjepa[demo]'") from None

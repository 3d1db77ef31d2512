"""Small corpora in the true layouts of the SUPERB tasks, spoken by the demo synthesiser."""

import csv
import itertools
import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import soundfile

from sjepa.data.synthetic import VOICES, Spoken, Voice, speak
from sjepa.evaluate.superb.corpora.snips import SNIPS_SPEAKERS
from sjepa.evaluate.superb.corpora.speech_commands import hash_to_percent

# Prosody of each emotion: pitch, pitch range, words a minute, loudness.
PROSODY = {"neu": (45, 40, 165, 0.4), "exc": (85, 90, 200, 0.5), "ang": (60, 70, 220, 0.9), "sad": (20, 10, 115, 0.1)}
NUMBERS = ["one", "two", "three", "four", "five", "six"]


def write(path: Path, spoken: Spoken) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, spoken.samples, 16_000, subtype="PCM_16")


def librispeech(root: Path, subsets: dict[str, int], voices: Sequence[Voice], seed: int = 0) -> Path:
    """LibriSpeech with some spoken numbers per voice in each subset, and phones for all of them."""
    generator = random.Random(seed)
    phones = []
    sexes = []
    for subset, each in subsets.items():
        for index, voice in enumerate(voices):
            speaker = str(100 + index)
            sexes.append(f"{speaker} | {voice.gender.upper()} | {subset} | 1.0 | {voice.name}")
            for chapter in ("11", "12"):
                folder = root / "LibriSpeech" / subset / speaker / chapter
                lines = []
                for number in range(each // 2):
                    text = " ".join(generator.choices(NUMBERS, k=generator.choice((1, 2))))
                    name = f"{speaker}-{chapter}-{number:04d}"
                    spoken = speak(text, voice)
                    write(folder / f"{name}.flac", spoken)
                    lines.append(f"{name} {text.upper()}\n")
                    phones.append(json.dumps({"name": name, "phones": at_hundred(spoken)}) + "\n")
                (folder / f"{speaker}-{chapter}.trans.txt").write_text("".join(lines))
    (root / "LibriSpeech" / "SPEAKERS.TXT").write_text(
        ";ID | SEX | SUBSET | MINUTES | NAME\n" + "\n".join(sexes) + "\n"
    )
    (root / "phones-dev-clean.jsonl").write_text("".join(phones))
    return root


def at_hundred(spoken: Spoken) -> list[str]:
    """Phone at the centre of every 10 ms."""
    ends = np.array([end for _, end, _ in spoken.phones])
    centres = np.arange(0.005, len(spoken.samples) / 16_000, 0.01)
    symbols = [spoken.phones[min(i, len(ends) - 1)][2] for i in np.searchsorted(ends, centres, side="right")]
    return ["SIL" if symbol == "sil" else symbol for symbol in symbols]


def iemocap(root: Path, each: int = 3) -> Path:
    """Five sessions of two speakers, with every emotion spoken several times with its prosody."""
    texts = ["i did not know that", "we will go there", "look at this now"]
    for session in range(1, 6):
        folder = root / f"Session{session}"
        lines = ["% [START_TIME - END_TIME] TURN_NAME EMOTION [V, A, D]", ""]
        dialog = f"Ses0{session}F_impro01"
        for sex, voice in zip("FM", VOICES[2 * session - 2 : 2 * session], strict=True):
            for number, (emotion, turn) in enumerate(itertools.product(PROSODY, range(each))):
                pitch, pitch_range, rate, peak = PROSODY[emotion]
                acted = replace(voice, pitch=pitch, pitch_range=pitch_range, rate=rate, peak=peak)
                name = f"{dialog}_{sex}{number:03d}"
                write(folder / "sentences" / "wav" / dialog / f"{name}.wav", speak(texts[turn % 3], acted))
                lines.append(f"[6.2901 - 8.2357]\t{name}\t{emotion}\t[2.5000, 2.5000, 2.5000]")
                lines.append(f"C-E1:\tNeutral;\t(for {name})")
        lines.append(f"[0.0 - 1.0]\t{dialog}_F999\tfru\t[1.0, 1.0, 1.0]")
        (folder / "dialog" / "EmoEvaluation").mkdir(parents=True, exist_ok=True)
        (folder / "dialog" / "EmoEvaluation" / f"{dialog}.txt").write_text("\n".join(lines) + "\n")
    return root


def snips(root: Path, each: int = 24) -> Path:
    """Audio SNIPS with two templated commands and two slots."""
    generator = random.Random(0)
    folder = root / "SNIPS"
    lines = []
    speakers = {"train": SNIPS_SPEAKERS["train"][:3], "valid": ["Amy"], "test": ["Brian"]}
    voices = itertools.cycle(VOICES)
    for subset, names in speakers.items():
        for speaker in names:
            voice = next(voices)
            for number in range(each):
                if generator.random() < 0.5:
                    words, tags = ["play", generator.choice(["abba", "sade"])], ["O", "artist"]
                    intent = "PlayMusic"
                else:
                    words, tags = ["in", generator.choice(["rome", "paris"])], ["O", "city"]
                    intent = "GetWeather"
                name = f"{speaker}-snips-{subset}-{number}"
                write(folder / subset / f"{name}.wav", speak(" ".join(words), voice))
                lines.append(f"{name} BOS {' '.join(words)} EOS\tO {' '.join(tags)} {intent}\n")
    (folder / "all.iob.snips.txt").write_text("".join(lines))
    (folder / "slots.txt").write_text("O\nartist\ncity\n")
    return root


def speech_commands(root: Path, words: Sequence[str] = ("yes", "no", "stop"), unknown: str = "bed") -> Path:
    """Speech Commands: one recording of each word a voice, a hash a voice, background noise, and its test set."""
    folder, test = root / "speech_commands_v0.01", root / "speech_commands_test_set_v0.01"
    generator = random.Random(0)
    tested = VOICES[-3:]
    for voice in VOICES:
        wanted = "test" if voice in tested else "dev" if voice in VOICES[:2] else "train"
        speaker = next(h for h in iter(lambda: f"{generator.randrange(2**32):08x}", "") if part_of(h) == wanted)
        for word in (*words, unknown):
            for take in range(3):
                spoken = speak(word, replace(voice, pitch=max(1, voice.pitch - 10 * take)))
                write(folder / word / f"{speaker}_nohash_{take}.wav", spoken)
                if wanted == "test" and take == 0:
                    name = "_unknown_" if word == unknown else word
                    write(test / name / f"{speaker}_nohash_0.wav", spoken)
    noise = np.random.default_rng(0).normal(0, 0.02, 16_000 * 6).astype(np.float32)
    for place, number in ((folder / "_background_noise_", 2), (test / "_silence_", 3)):
        place.mkdir(parents=True, exist_ok=True)
        for index in range(number):
            samples = noise if place.name.startswith("_back") else noise[index * 16_000 : (index + 1) * 16_000]
            soundfile.write(place / f"noise{index}.wav", samples, 16_000)
    return root


def part_of(speaker: str) -> str:
    share = hash_to_percent(f"{speaker}_nohash_0.wav")
    return "dev" if share < 10 else "test" if share < 20 else "train"


def fluent_commands(root: Path) -> Path:
    """Fluent Speech Commands: four intents."""
    intents = {
        "turn on the lights": ("activate", "lights", "none"),
        "lights off": ("deactivate", "lights", "none"),
        "music up in the kitchen": ("increase", "volume", "kitchen"),
        "louder": ("increase", "volume", "none"),
    }
    folder = root / "fluent_speech_commands_dataset"
    (folder / "data").mkdir(parents=True)
    voices = {"train": VOICES[:9], "valid": VOICES[9:11], "test": VOICES[11:]}
    for subset, speakers in voices.items():
        rows = []
        for voice in speakers:
            for text, intent in intents.items():
                for take in range(2):
                    path = f"wavs/speakers/{voice.name}/{text.replace(' ', '-')}-{take}.wav"
                    write(folder / path, speak(text, replace(voice, rate=voice.rate + 15 * take)))
                    rows.append([len(rows), path, voice.name, text, *intent])
        with (folder / "data" / f"{subset}_data.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["", "path", "speakerId", "transcription", "action", "object", "location"])
            writer.writerows(rows)
    return root


def voxceleb(root: Path, speakers: int = 6) -> Path:
    """VoxCeleb1: a video is a sentence of its own; every speaker is in all parts."""
    texts = ["hello there", "good morning", "see you soon", "thank you all", "what a day", "never again", "come in now"]
    lines = []
    for index, voice in enumerate(VOICES[:speakers]):
        for number, text in enumerate(texts):
            part = 3 if number == 6 else 2 if number == 5 else 1
            name = f"id{10001 + index}/video{number}/00001.wav"
            write(root / ("test" if index == 0 else "dev") / "wav" / name, speak(text, voice))
            lines.append(f"{part} {name}\n")
    (root / "iden_split.txt").write_text("".join(lines))
    return root


def verification(root: Path, speakers: int = 8, tested: int = 3) -> Path:
    """VoxCeleb1 for verification: training speakers in dev, others in test, and trials about the others."""
    texts = [
        "hello there my old friend how have you been all this time",
        "good morning everyone and welcome to this house",
        "see you soon and have a very good day out there",
        "thank you all for coming here on this cold morning",
    ]
    trials = []
    for index, voice in enumerate(VOICES[:speakers]):
        part = "test" if index < tested else "dev"
        for number, text in enumerate(texts):
            write(root / part / "wav" / f"id{10270 + index}" / f"video{number}" / "00001.wav", speak(text, voice))
    names = [f"id{10270 + index}/video{number}/00001.wav" for index in range(tested) for number in range(len(texts))]
    for first, second in itertools.combinations(names, 2):
        trials.append(f"{int(first[:7] == second[:7])} {first} {second}\n")
    (root / "voxceleb1_test_v2.txt").write_text("".join(trials))
    return root


def libri2mix(root: Path, each: int = 6) -> Path:
    """Mixtures of two voices in Kaldi data directories; the second begins later."""
    generator = random.Random(0)
    for part in ("train", "dev", "test"):
        folder = root / part
        tables: dict[str, list[str]] = {name: [] for name in ("wav.scp", "segments", "utt2spk", "reco2dur")}
        for number in range(each):
            voices = generator.sample(VOICES, 2)
            spoken = [speak(" ".join(generator.choices(NUMBERS, k=4)), voice).samples for voice in voices]
            delay = generator.randrange(4000, 12_000)
            total = max(len(spoken[0]), delay + len(spoken[1]))
            mixed = np.zeros(total, np.float32)
            mixed[: len(spoken[0])] += spoken[0] / 2
            mixed[delay : delay + len(spoken[1])] += spoken[1] / 2
            name = f"mix-{part}-{number}"
            (root / "wav" / part).mkdir(parents=True, exist_ok=True)
            soundfile.write(root / "wav" / part / f"{name}.wav", mixed, 16_000)
            tables["wav.scp"].append(f"{name} {(root / 'wav' / part / f'{name}.wav').absolute()}")
            tables["reco2dur"].append(f"{name} {total / 16_000}")
            for voice, first, samples in zip(voices, (0, delay), spoken, strict=True):
                turn = f"{voice.name}_{name}"
                tables["segments"].append(f"{turn} {name} {first / 16_000:.4f} {(first + len(samples)) / 16_000:.4f}")
                tables["utt2spk"].append(f"{turn} {voice.name}")
        folder.mkdir(parents=True, exist_ok=True)
        for table, lines in tables.items():
            (folder / table).write_text("".join(f"{line}\n" for line in lines))
    return root


def quesst(root: Path, documents: int = 8) -> Path:
    """QUESST 2014: English queries of a word in English documents, and files of another language."""
    words = ["kitchen", "weather", "morning", "banana"]
    root = root / "quesst14Database"
    listed: dict[str, list[str]] = {"utterances": [], "dev": [], "eval": []}
    truth: dict[str, list[tuple[str, str]]] = {"dev": [], "eval": []}
    for number in range(documents):
        word, name = words[number % 4], f"quesst14_{number + 1:05d}"
        write(root / "Audio" / f"{name}.wav", speak(f"we like the {word} today", VOICES[number % 3]))
        listed["utterances"].append(f"quesst14Database/Audio/{name}.wav nnenglish")
    listed["utterances"].append("quesst14Database/Audio/quesst14_99999.wav czech")
    for part, voice in (("dev", VOICES[4]), ("eval", VOICES[5])):
        for index, word in enumerate(words):
            query = f"quesst14_{part}_{index + 1:04d}"
            write(root / f"{part}_queries" / f"{query}.wav", speak(word, voice))
            listed[part].append(f"quesst14Database/{part}_queries/{query}.wav nnenglish")
            truth[part] += [(query, f"quesst14_{n + 1:05d}") for n in range(documents) if words[n % 4] == word]
        foreign = f"quesst14_{part}_0999"
        listed[part].append(f"quesst14Database/{part}_queries/{foreign}.wav czech")
        truth[part].append((foreign, "quesst14_99999"))
        folder = root / "scoring" / f"groundtruth_quesst14_{part}"
        folder.mkdir(parents=True)
        terms = "".join(f'<term termid="{query}"><termtext>x</termtext></term>' for query in dict(truth[part]))
        (folder / f"quesst14_{part}.tlist.xml").write_text(f"<termlist>{terms}</termlist>")
        files = [f"quesst14_{n + 1:05d}" for n in range(documents)] + ["quesst14_99999"]
        excerpts = "".join(f'<excerpt audio_filename="{name}" channel="1"/>' for name in files)
        (folder / "quesst14.ecf.xml").write_text(f"<ecf>{excerpts}</ecf>")
        rttm = "".join(f"LEXEME {name} 1 0.00 1.00 {query} lex 1 0.5\n" for query, name in truth[part])
        (folder / f"quesst14_{part}.rttm").write_text(rttm)
    for part, lines in listed.items():
        (root / "scoring" / f"language_key_{part}.lst").write_text("".join(f"{line}\n" for line in lines))
    return root.parent


def ravdess(root: Path, actors: int = 6) -> Path:
    """The RAVDESS set's manifest, four of its emotions."""
    rows = []
    names = dict(zip(PROSODY, ("neutral", "happy", "angry", "sad"), strict=True))
    for voice, (emotion, prosody) in itertools.product(VOICES[:actors], PROSODY.items()):
        for take, text in enumerate(("dogs are sitting by the door", "kids are talking by the door")):
            pitch, pitch_range, rate, peak = prosody
            path = f"audio/{voice.name}/{emotion}{take}.wav"
            write(root / path, speak(text, replace(voice, pitch=pitch, pitch_range=pitch_range, rate=rate, peak=peak)))
            rows.append(
                {"id": f"{voice.name}-{emotion}{take}", "spk": voice.name, "emotion": names[emotion], "path": path}
            )
    (root / "manifest.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return root


def coffee(root: Path, orders: int = 90) -> Path:
    """The coffee set's manifest: a drink, and sometimes a size or a roast."""
    generator = random.Random(0)
    rows = []
    for number in range(orders):
        slots = {"coffeeDrink": generator.choice(["espresso", "mocha"])}
        words = [slots["coffeeDrink"]]
        if generator.random() < 0.5:
            slots["size"] = generator.choice(["large", "small"])
            words.insert(0, slots["size"])
        path = f"audio/{number}.wav"
        write(root / path, speak(" ".join(words), VOICES[number % 4]))
        rows.append({"id": str(number), "slots": slots, "path": path})
    (root / "manifest.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return root


def speakers(part: list) -> set[str]:
    return {u.speaker for u in part}

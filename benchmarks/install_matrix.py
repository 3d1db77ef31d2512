"""Install the built wheel into empty environments and run it from another folder, for each Python and torch.

    python benchmarks/install_matrix.py --out benchmarks/results/install-matrix.json

It uses the interpreters on the PATH (python3.11, python3.12, python3.13) and the torch versions that pip finds for
them. Failed installations are listed with the reason. `--demo` runs all of `sjepa demo` instead of a few steps.
"""

import argparse
import json
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYTHONS = ("3.11", "3.12", "3.13")
TORCHES = ("2.8.0", "2.9.1", "2.10.0", "2.11.0", "2.12.0", "2.13.0")
EXTRAS = ("demo", "figures", "log", "corpora", "s3", "superb", "onnx", "finetune", "lm", "abx")
FEW_STEPS = ["--phase1.steps", "3", "--phase2.steps", "2", "--train.device", "cpu"]


def call(command: list[str], folder: Path, seconds: float = 3600) -> tuple[bool, str]:
    """Run a command. Return whether it succeeded, and its last line of output."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=seconds)
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    return done.returncode == 0, lines[-1][:300] if lines else ""


def build_wheel(folder: Path) -> Path:
    done, line = call(
        [sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", str(folder), str(ROOT)], folder
    )
    if not done:
        raise SystemExit(f"the wheel could not be built: {line}")
    return next(folder.glob("sjepa-*.whl"))


def try_environment(python: str, torch: str, wheel: Path, arguments: argparse.Namespace) -> dict[str, object]:
    """Install and run in one environment, and list the extras that pip can resolve there."""
    found = shutil.which(f"python{python}")
    facts: dict[str, object] = {"python": python, "torch": torch}
    if found is None:
        return facts | {"result": "skipped", "why": f"there is no python{python} on this machine"}
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        call([found, "-m", "venv", "env"], folder)
        pip = [str(folder / "env/bin/python"), "-m", "pip", "install", "--quiet"]
        pip += ["--extra-index-url", arguments.index] if arguments.index else []
        done, line = call([*pip, f"torch=={torch}"], folder)
        if not done:
            return facts | {"result": "skipped", "why": f"pip finds no torch {torch}: {line}"}
        done, line = call([*pip, f"{wheel}[demo]"], folder)
        if not done:
            return facts | {"result": "failed", "why": f"install: {line}"}
        sjepa, elsewhere = str(folder / "env/bin/sjepa"), folder / "elsewhere"
        elsewhere.mkdir()
        synthesise = (
            "from pathlib import Path; from sjepa.data.synthetic import synthesise_corpus; "
            "synthesise_corpus(Path('corpus'), voices=2, sentences_per_voice=20)"
        )
        steps = [
            [sjepa, "--version"],
            [str(folder / "env/bin/python"), "-c", synthesise],
            [sjepa, "pretrain", "--preset", "tiny", "--data", "corpus", "--out", "run", *FEW_STEPS],
            [sjepa, "embed", "corpus/audio", "--encoder", "run", "--out", "features"],
            [sjepa, "report", "run"],
        ]
        for step in [[sjepa, "demo"]] if arguments.demo else steps:
            done, line = call(step, elsewhere)
            if not done:
                return facts | {"result": "failed", "why": f"{' '.join(step[:2])}: {line}"}
        extras = {}
        for extra in EXTRAS if arguments.extras else ():
            done, line = call([*pip, "--dry-run", f"{wheel}[{extra}]"], folder)
            extras[extra] = "available" if done else f"skipped: {line}"
    facts |= {"extras": extras} if extras else {}
    return facts | {"result": "passed", "seconds": round(time.monotonic() - began)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", nargs="+", default=PYTHONS)
    parser.add_argument("--torch", nargs="+", default=TORCHES)
    parser.add_argument("--index", default="", help="another package index, such as torch's CPU wheels")
    parser.add_argument("--demo", action="store_true", help="run all of `sjepa demo`")
    parser.add_argument("--extras", action="store_true", help="also check which extras pip can resolve")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory() as name:
        wheel = build_wheel(Path(name))
        for python in arguments.python:
            for torch in arguments.torch:
                results.append(try_environment(python, torch, wheel, arguments))
                line = results[-1]
                print(f"Python {python}, torch {torch}: {line['result']} {line.get('why', '')}", flush=True)
    facts = {"machine": platform.machine(), "system": platform.system(), "demo": arguments.demo, "results": results}
    if arguments.out:
        arguments.out.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()

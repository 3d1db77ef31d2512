"""Install the built wheel into empty environments and run it from another folder, for each Python and torch.

    python benchmarks/install_matrix.py --out benchmarks/results/install-matrix.json

It uses the interpreters on the PATH (python3.11, python3.12, python3.13) and the torch versions that pip finds for
them. Failed installations are listed with the reason. `--demo` runs all of `sjepa demo` instead of a few steps. `--uv`
installs with uv, whose cache makes many environments cheap. Results are written after each environment, and those of
other environments in the same file stay, so the matrix can be run in parts.
"""

import argparse
import itertools
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
TORCHES = ("2.8.0", "2.9.1", "2.10.0", "2.11.0", "2.12.1", "2.13.0")
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
        call([found, "-m", "venv", *(["--without-pip"] if arguments.uv else []), "env"], folder)
        inside = str(folder / "env/bin/python")
        pip = ["uv", "pip", "install", "--python", inside] if arguments.uv else [inside, "-m", "pip", "install"]
        pip.append("--quiet")
        pip += ["--extra-index-url", arguments.index] if arguments.index else []
        done, line = call([*pip, f"torch=={torch}"], folder)
        if not done:
            return facts | {"result": "skipped", "why": f"torch {torch} cannot be installed: {line}"}
        done, line = call([*pip, f"{wheel}[demo]", f"torch=={torch}"], folder)
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
            [inside, "-c", synthesise],
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
            done, line = call([*pip, "--dry-run", f"{wheel}[{extra}]", f"torch=={torch}"], folder)
            extras[extra] = "available" if done else f"skipped: {line}"
        _, installed = call([inside, "-c", "import torch; print(torch.__version__)"], elsewhere)
    facts |= {"extras": extras} if extras else {}
    seconds = round(time.monotonic() - began)
    return facts | {"result": "passed", "installed": installed, "demo": arguments.demo, "seconds": seconds}


def merge_results(known: list[dict[str, object]], new: dict[str, object]) -> list[dict[str, object]]:
    """Add a result, in place of an earlier one of the same environment."""
    names = ("python", "torch")
    kept = [each for each in known if [each[n] for n in names] != [new[n] for n in names]]
    return sorted([*kept, new], key=lambda each: [[int(p) for p in str(each[n]).split(".")] for n in names])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", nargs="+", default=PYTHONS)
    parser.add_argument("--torch", nargs="+", default=TORCHES)
    parser.add_argument("--index", default="", help="another package index, such as torch's CPU wheels")
    parser.add_argument("--demo", action="store_true", help="run all of `sjepa demo`")
    parser.add_argument("--extras", action="store_true", help="also check which extras pip can resolve")
    parser.add_argument("--uv", action="store_true", help="install with uv instead of pip")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    results = []
    if arguments.out and arguments.out.is_file():
        results = json.loads(arguments.out.read_text())["results"]
    with tempfile.TemporaryDirectory() as name:
        wheel = build_wheel(Path(name))
        for python, torch in itertools.product(arguments.python, arguments.torch):
            line = try_environment(python, torch, wheel, arguments)
            print(f"Python {python}, torch {torch}: {line['result']} {line.get('why', '')}", flush=True)
            results = merge_results(results, line)
            if arguments.out:
                facts = {"machine": platform.machine(), "system": platform.system(), "results": results}
                arguments.out.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()

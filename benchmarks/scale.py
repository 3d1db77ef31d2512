"""Make, open and plan an index of 25 million utterances (83,000 hours) for 64 ranks, and measure it.

    python benchmarks/scale.py --out benchmarks/results/scale.json

There is no audio, but the code is the same as for a real index. Durations are 15 s times Beta(4, 1), 12 s on average,
as after cutting long recordings to at most 15 s.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

RANKS, BLOCKS, POSITIONS = 64, (1, 16), ((0, 10), (0, 100_000), (7, 1_000), (7, 100_000))
BATCH = {"seconds": 2880.0, "buckets": (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 12.0, 14.0, 15.0)}


def write_index(folder: Path, utterances: int, part_rows: int = 250_000) -> None:
    """Write index parts like `sjepa shard`, then merge them in the same way."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from sjepa.data.index import merge_parts
    from sjepa.data.index_folder import IndexFolder

    index = IndexFolder(folder)
    index.parts.mkdir(parents=True)
    generator = np.random.default_rng(0)
    parts = []
    for number, first in enumerate(range(0, utterances, part_rows)):
        count = min(part_rows, utterances - first)
        rows = np.arange(first, first + count)
        length = np.maximum(16_000, 240_000 * generator.beta(4, 1, count)).astype(np.int32)
        shard = rows // 2400  # 8 hours
        names = [f"{name:06d}.tar".encode() for name in range(shard[0], shard[-1] + 1)]
        strings = {"id": rows, "speaker": rows // 3000, "sex": rows // 3000 % 2, "chapter": rows // 300}
        columns = {"path": pa.DictionaryArray.from_arrays((shard - shard[0]).astype(np.int32), names)}
        columns |= {"byte_offset": np.cumsum(length, dtype=np.int64), "byte_size": length.astype(np.int64)}
        columns |= {"start": np.zeros(count, np.int64), "length": length}
        columns |= {name: pc.cast(pa.array(values), pa.string()) for name, values in strings.items()}
        columns |= {"text": pa.array([""] * count), "key": rows.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)}
        table = pa.table(columns).replace_schema_metadata({"refused": "[]"})
        parts.append(index.parts / f"{number:06d}.arrow")
        with pa.OSFile(str(parts[-1]), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
    merge_parts(index, parts, {"root": ".", "shards": "flac"})


def time_start(folder: str, block: int, epoch: int, index: int) -> dict[str, float]:
    """Time a rank from start to its first planned batch. Called in a separate process."""
    began = time.perf_counter()
    from sjepa.data.opening import open_corpus
    from sjepa.data.sampler import BatchPlan

    imported = time.perf_counter()
    corpus = open_corpus(folder, 15.0, "none", 0.0)
    corpus.fingerprint()
    opened = time.perf_counter()
    plan = BatchPlan(corpus.length, seed=0, block=block, **BATCH)  # type: ignore[arg-type]
    next(plan.batches(epoch, index))
    done = time.perf_counter()
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {
        "import_s": imported - began,
        "open_s": opened - imported,
        "plan_s": done - opened,
        "total_s": done - began,
        "peak_gb": int(status["VmHWM"].split()[0]) * 1024 / 1e9,
        "of_it_mapped_gb": int(status["RssFile"].split()[0]) * 1024 / 1e9,
    }


def measure_epoch(folder: str, block: int) -> dict[str, float]:
    """Plan one epoch for all ranks. Measure how often each utterance occurs, and the audio per rank."""
    from sjepa.data.opening import open_corpus
    from sjepa.data.sampler import BatchPlan

    corpus = open_corpus(folder, 15.0, "none", 0.0)
    plan = BatchPlan(corpus.length, seed=0, block=block, **BATCH)  # type: ignore[arg-type]
    epoch = plan.epoch(0)
    times = np.bincount(epoch.utterances, minlength=len(corpus))
    rank_samples = np.zeros(RANKS)
    whole = np.zeros(RANKS)
    for index in range(len(epoch)):
        spec = epoch[index]
        for rank in range(RANKS):
            lengths = corpus.length[spec.utterances[spec.places(rank, RANKS)]]
            rank_samples[rank] += spec.samples * len(lengths)
            whole[rank] += lengths.sum()
    available = corpus.length[epoch.utterances].sum(dtype=np.int64)
    return {
        "batches": len(epoch),
        "most_often": int(times.max()),
        "utterances_heard_share": float((times > 0).mean()),
        "imbalance_after_crop": float(rank_samples.max() / rank_samples.min() - 1),
        "imbalance_before_crop": float(whole.max() / whole.min() - 1),
        "crop_loss": 1 - epoch.total_samples() / available,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--utterances", type=int, default=25_000_000)
    parser.add_argument(
        "--folder", help="folder of the index, made if it does not exist; by default a temporary folder"
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--start", nargs=4, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.start:
        folder, *numbers = given.start
        print(json.dumps(time_start(folder, *map(int, numbers))))
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(given.folder or temporary) / "index"
        began = time.perf_counter()
        if not folder.exists():
            write_index(folder, given.utterances)
        facts = json.loads((folder / "index.json").read_text())
        results = {"utterances": facts["utterances"], "hours": facts["hours"], "ranks": RANKS}
        results["build_s"] = time.perf_counter() - began
        results["disk_gb"] = {path.name: path.stat().st_size / 1e9 for path in sorted(folder.glob("*.arrow"))}
        for block in BLOCKS:
            results[f"block {block}"] = {"epoch": measure_epoch(str(folder), block), "start": {}}
            for epoch, index in POSITIONS:
                call = [sys.executable, __file__, "--start", str(folder), str(block), str(epoch), str(index)]
                line = subprocess.run(call, check=True, capture_output=True, text=True).stdout.splitlines()[-1]
                results[f"block {block}"]["start"][f"epoch {epoch}, batch {index}"] = json.loads(line)
    print(json.dumps(results, indent=1))
    if given.out:
        given.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()

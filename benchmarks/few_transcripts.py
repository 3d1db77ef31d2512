"""ASR-lite with transcripts of fewer speakers, to separate the effect of the encoder from that of the labels.

python benchmarks/few_transcripts.py ENCODER CORPORA SPEAKERS OUT   # for example the first 7 of 28 speakers

ENCODER and CORPORA are as for `sjepa superb asr --lite`. Steps, learning rate, head, dev and test do not change.
"""

import sys
from dataclasses import replace
from pathlib import Path

from sjepa.evaluate.superb.protocol import LearningRateSearch, format_scores
from sjepa.evaluate.superb.tasks import make_task
from sjepa.evaluate.upstream import load_upstream


def main() -> None:
    if len(sys.argv) != 5 or not sys.argv[3].isdecimal() or int(sys.argv[3]) == 0:
        raise SystemExit(__doc__)
    encoder, corpora, speakers, out = sys.argv[1:]
    task = make_task("asr", Path(corpora), lite=True)
    [fold] = task.folds
    kept = sorted({u.speaker for u in fold.train})[: int(speakers)]
    few = replace(fold, name=f"{fold.name}, {len(kept)} to train", train=[u for u in fold.train if u.speaker in kept])
    upstream = load_upstream(encoder, "auto")
    results = LearningRateSearch(replace(task, folds=[few]), upstream, Path(out)).run([task.recipe.lr])
    scores = format_scores(results["metrics"])
    print(f"{upstream.name}, {len(few.train)} utterances of {len(kept)} speakers: test {scores}")


if __name__ == "__main__":
    main()

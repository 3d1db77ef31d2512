"""ASR-lite with transcripts of fewer speakers: what does a head owe to the encoder, what to what it is taught?

python benchmarks/few_transcripts.py ENCODER CORPORA SPEAKERS OUT   # the first 7 of ASR-lite's 28

ENCODER and CORPORA as for `sjepa superb asr --lite`, of which everything else stays: steps, rate, head, dev with its
transcripts, and test.
"""

import sys
from dataclasses import replace
from pathlib import Path

from sjepa.evaluate.superb.protocol import Evaluation, format_scores
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
    results = Evaluation(replace(task, folds=[few]), upstream, Path(out)).run([task.recipe.lr])
    scores = format_scores(results["metrics"])
    print(f"{upstream.name}, {len(few.train)} utterances of {len(kept)} speakers: test {scores}")


if __name__ == "__main__":
    main()

"""Frozen features in scikit-learn: who speaks, from the mean of a layer's frames.

    sjepa embed CORPUS --encoder RUN --pool mean --format parquet --out FEATURES
    python examples/frozen_features.py FEATURES CORPUS/labels.jsonl speaker

The labels are JSON lines with `path` (below the folder that was embedded) and the property to predict.
"""

import argparse
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow.parquet
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from sjepa.counts import format_count
from sjepa.errors import UserError
from sjepa.evaluate.superb.records import read_json_lines
from sjepa.fields import TEXT, require
from sjepa.progress import track

FOLDS = 5
parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("features", type=Path)
parser.add_argument("labels", type=Path)
parser.add_argument("property")
given = parser.parse_args()
features, labels, what = given.features, given.labels, given.property
if not features.exists():
    parser.error(f"there is no {features}")
if not labels.is_file():
    parser.error(f"there is no file {labels}")

try:
    table = pyarrow.parquet.read_table(features, columns=["file", "features"]).to_pydict()
except pyarrow.ArrowInvalid:
    parser.error(f"{features} holds no features as Parquet: make them with sjepa embed --pool mean --format parquet")
except KeyError:
    parser.error(f"{features} has no column features of one layer: leave out --layer all")
try:
    rows = dict(read_json_lines(labels))
    wanted = {require(row, "path", TEXT, f"{labels} line {number}"): row.get(what) for number, row in rows.items()}
except UserError as error:
    parser.error(str(error))
unlabelled = [file for file in table["file"] if wanted.get(file) is None]
if unlabelled:
    known = ", ".join(sorted({name for row in rows.values() for name in row}))
    missing = format_count(len(unlabelled), "recording")
    parser.error(f"{labels} has no {what} for {missing}, first {unlabelled[0]}; it has {known}")
x = np.array(table["features"])
y = np.array([wanted[file] for file in table["file"]])

counts = Counter(y.tolist()).most_common()
if len(counts) < 2 or counts[-1][1] < FOLDS:
    parser.error(
        f"{what} has {format_count(len(counts), 'value')}, the rarest ({counts[-1][0]}) in "
        f"{format_count(counts[-1][1], 'recording')}: "
        f"at least 2 values with {FOLDS} recordings each are needed"
    )

probe = make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000))
folds = StratifiedKFold(FOLDS, shuffle=True, random_state=0)
accuracy = np.array(
    [
        probe.fit(x[training], y[training]).score(x[testing], y[testing])
        for training, testing in track(folds.split(x, y), "Folds", FOLDS)
    ]
)
chance = counts[0][1] / len(y)
print(f"{what}: accuracy {accuracy.mean():.3f} over {FOLDS} folds, chance {chance:.3f}; {len(y)} recordings")

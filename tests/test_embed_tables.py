"""The tables that `sjepa embed` writes: any format gives back its columns, and deduplicated units cover every frame."""

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from sjepa.embed.readout import deduplicate_units
from sjepa.embed.tables import write_table


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), min_size=1, max_size=6))
def test_deduplicated_units_cover_every_frame_once(pieces: list[list[int]]) -> None:
    frames = [unit for piece in pieces for unit in piece]
    tables = list(deduplicate_units(np.array(piece, np.int32) for piece in pieces))
    units, start, end = (np.concatenate([table[name] for table in tables]) for name in ("units", "start", "end"))
    assert (units[1:] != units[:-1]).all()
    np.testing.assert_allclose(start[1:], end[:-1])
    lasting = np.rint((end - start) * 50).astype(int)
    assert np.repeat(units, lasting).tolist() == frames
    assert start[0] == pytest.approx((200 - 160) / 16_000)


@pytest.mark.parametrize("kind", ["npz", "safetensors", "parquet"])
def test_every_format_gives_back_what_was_written_in_pieces(kind: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    pieces = [{"features": rng.random((n, 5), np.float32), "time": rng.random(n)} for n in (3, 1, 7)]
    wanted = {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}
    path = tmp_path / "ünï" / f"x.{kind}"
    assert write_table(path, kind, iter(pieces), {"file": "x – ü"}) == 11  # type: ignore[arg-type]
    if kind == "npz":
        found = dict(np.load(path))
        assert json.loads(str(found.pop("about"))) == {"file": "x – ü"}
    elif kind == "safetensors":
        found = safetensors.numpy.load_file(path)
        with safetensors.safe_open(path, "numpy") as opened:
            assert opened.metadata() == {"file": "x – ü"}
    else:
        table = pyarrow.parquet.read_table(path.parent).to_pydict()
        assert table.pop("file") == ["x – ü"] * 11
        assert pyarrow.parquet.ParquetFile(path).num_row_groups == 3
        found = {name: np.array(values) for name, values in table.items()}
    assert found.keys() == wanted.keys()
    for name, values in wanted.items():
        np.testing.assert_array_equal(found[name], values)
    assert [file.name for file in path.parent.iterdir()] == [path.name]

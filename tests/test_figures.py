"""`sjepa figures`: the figures that the available results allow, and the commands for the others."""

import errno
import json
from pathlib import Path

import pytest
from analysed import corpus, keep_findings, trained
from pages import make_events, make_run
from test_table import probe, result

from sjepa.analysis import style
from sjepa.analysis.clusters import corpus_inputs
from sjepa.analysis.erank import analyse_erank, draw_phases
from sjepa.analysis.figures import make_figures
from sjepa.analysis.pareto import COMPACT, analyse_pareto, compact_region
from sjepa.cli import dispatch
from sjepa.errors import UserError
from sjepa.evaluate import reported

pytest.importorskip("matplotlib")
from matplotlib.figure import Figure


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with findings and results."""
    run = keep_findings(make_run(tmp_path_factory.mktemp("figures") / "run", make_events(shares=True)))
    for path in sorted((run / "analysis").glob("utterance-*.json"))[1:]:
        path.unlink()  # one is enough
    for name, found in (("asr", result("run", "asr", {"wer": 11.0})), ("probe", probe())):
        (run / "results" / name).mkdir(parents=True)
        (run / "results" / name / "results.json").write_text(json.dumps(found))
    return run


def test_everything_at_hand_is_drawn_and_what_is_missing_has_its_command(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (whole / "config.toml").touch()
    dispatch(["figures", str(whole), "--out", str(tmp_path / "out")])
    printed = capsys.readouterr().out
    made = {path.name for path in (tmp_path / "out").iterdir() if not path.name.startswith(".")}
    utterances = {f"{path.stem}.{kind}" for path in (whole / "analysis").glob("utt*.json") for kind in ("pdf", "svg")}
    figures = {f"{name}.{kind}" for name in ("erank", "entropy", "clusters", "pareto") for kind in ("pdf", "svg")}
    tables = {f"table-{name}.{kind}" for name in ("superb", "probes") for kind in ("tex", "md")}
    assert made == utterances | figures | tables
    assert (tmp_path / "out" / "erank.pdf").read_bytes()[:5] == b"%PDF-"
    assert all(str(tmp_path / "out" / name) in printed for name in made)
    listed = printed.split("Missing")[1]
    assert f"sjepa analyze erank {whole} --data LABELLED" in listed
    assert f"sjepa analyze progress {whole} --data LABELLED" in listed
    assert "sjepa superb" not in listed
    assert style.FORMATS == ["svg", "png"]  # as before


def test_a_figure_that_cannot_be_written_leaves_the_earlier_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill_the_disk(drawn: Figure, path: str | Path, **options: object) -> None:
        Path(path).write_text("half")
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(Figure, "savefig", fill_the_disk)
    (tmp_path / "erank.svg").write_text("whole")
    with pytest.raises(OSError, match="erank"), style.figure(1, 1, tmp_path / "erank"):
        pass
    assert (tmp_path / "erank.svg").read_text() == "whole"
    assert [path.name for path in tmp_path.iterdir()] == ["erank.svg"]


def test_a_bare_run_has_reported_systems_alone_and_a_list_of_commands(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / where / "same", []) for where in ("a", "b")]
    made = make_figures(runs, tmp_path / "out")
    assert {path.name for path in made.files} == {"pareto.pdf", "pareto.svg"}
    commands = "\n".join(how for _, how in made.missing)
    for needed in ("analyze entropy", "analyze utterance", "analyze clusters", "superb asr", "superb all", "probe"):
        assert f"sjepa {needed}" in commands, needed


def test_runs_of_one_name_have_figures_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("draw_erank", "draw_pareto", "draw_clusters"):
        monkeypatch.setattr(f"sjepa.analysis.figures.{name}", lambda *_: None)
    runs = [make_run(tmp_path / where / "same", make_events()) for where in ("a", "b")]
    names = {path.name for path in make_figures(runs, tmp_path / "out").files}
    assert {"same-1-erank.pdf", "same-2-erank.pdf", "pareto.pdf"} <= names


def test_effective_ranks_stand_in_one_panel_per_phase_over_its_own_steps(tmp_path: Path) -> None:
    from matplotlib.figure import Figure

    found = analyse_erank(make_run(tmp_path / "run", make_events()))
    fig = Figure()
    draw_phases(fig, found)
    panels = [axes for axes in fig.axes if axes.get_title(loc="left") or axes.get_title()]
    titles = [axes.get_title(loc="left") or axes.get_title() for axes in panels]
    assert titles == ["(a) Phase 1", "(b) Phase 2"]
    for axes, (number, start, end) in zip(panels, found["phases"], strict=True):
        assert axes.get_xlim() == (start, end)
        lines = [line for line in axes.get_lines() if line.get_label().startswith("layer")]
        steps = [step for step, phase in zip(found["steps"], found["phase"], strict=True) if phase == number]
        assert len(lines) == len(found["smoothed"][-1])
        assert all(list(line.get_xdata()) == steps for line in lines)
    assert panels[0].get_ylim() == panels[1].get_ylim()


def test_the_compact_region_is_what_the_paper_shades() -> None:
    """From 51.8 to 90 million; from DeCoAR's 13.02 to 12.10, and from DistilHuBERT's 63.02 to 64.83."""
    asr, er = analyse_pareto([])["tasks"].values()
    assert (asr["compact"]["from"], asr["compact"]["to"], asr["compact"]["name"]) == (51.8, 90.0, "S-JEPA (paper)")
    assert (asr["compact"]["prior"], asr["compact"]["score"], asr["compact"]["better"]) == (13.02, 12.1, True)
    assert (er["compact"]["prior"], er["compact"]["score"], er["compact"]["better"]) == (63.02, 64.83, True)
    small = [row for row in reported.SUPERB if row.millions is not None and row.millions < COMPACT]
    assert min(row.scores["asr wer"] for row in small if row.name != "S-JEPA (paper)") == asr["compact"]["prior"]
    ours = {"name": "mine", "millions": 40.0, "score": 20.0, "ours": True}
    region = compact_region([*asr["systems"], ours], lower=True)
    assert (region["name"], region["from"], region["better"]) == ("mine", 40.0, False)  # ours, though it gains nothing


def test_a_result_of_other_data_or_settings_is_not_replaced_unless_forced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Refused before the model is loaded, with what differs; the same data by another path is the same."""
    monkeypatch.setattr("sjepa.analysis.restored_run.RestoredRun", lambda *_: pytest.fail("the model was loaded"))
    out = tmp_path / "out"
    made_from = {"data": str(corpus().resolve()), "utterances": 500, "seed": 0}
    style.save_findings({"subject": "entropy", "made_from": made_from}, out, "entropy")
    before = (out / "entropy.json").read_bytes()
    call = ["analyze", "entropy", str(trained()), "--out", str(out)]
    with pytest.raises(UserError) as refusal:
        dispatch([*call, "--data", str(tmp_path), "--utterances", "20"])
    for words in (f"data was {corpus().resolve()}, now {tmp_path}", "utterances was 500, now 20", "--force", "--out"):
        assert words in str(refusal.value)
    assert (out / "entropy.json").read_bytes() == before
    for allowed in (["--data", f"{corpus()}/."], ["--data", str(tmp_path), "--force"]):
        with pytest.raises(pytest.fail.Exception, match="the model was loaded"):
            dispatch([*call, *allowed])
    style.save_findings({"subject": "entropy"}, out, "entropy")  # of an older version
    with pytest.raises(pytest.fail.Exception, match="the model was loaded"):
        dispatch([*call, "--data", str(tmp_path)])
    assert "entropy.json, which does not record its data and settings" in capsys.readouterr().out
    found = {"subject": "entropy", "made_from": made_from | {"utterances": 200}}
    style.save_findings(found | style.MADE_BY_REPORT, out, "entropy")
    with pytest.raises(pytest.fail.Exception, match="the model was loaded"):
        dispatch([*call, "--data", str(corpus())])
    assert "entropy.json, which `sjepa report` made" in capsys.readouterr().out


def test_clusters_without_data_keep_the_phones_that_were_found(tmp_path: Path) -> None:
    run = keep_findings(make_run(tmp_path / "run", make_events(shares=True)))
    kept = json.loads((run / "analysis" / "clusters.json").read_text())
    made_from = corpus_inputs(corpus(), "dev-clean", 500)
    style.save_findings(kept | {"made_from": made_from}, run / "analysis", "clusters")
    dispatch(["analyze", "clusters", str(run)])
    again = json.loads((run / "analysis" / "clusters.json").read_text())
    assert again["phones"] == kept["phones"]
    assert again["made_from"] == made_from
    with pytest.raises(
        UserError, match=r"clusters\.json was made from other data or settings \(utterances was 500, now 8\)"
    ):
        dispatch(["analyze", "clusters", str(run), "--data", str(corpus()), "--utterances", "8"])

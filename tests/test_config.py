"""Presets, typed overrides and clear refusals."""

import dataclasses
import tomllib
from importlib import resources
from pathlib import Path

import pytest
import torch

from sjepa import UserError
from sjepa.config import FREE, Config, differences, flatten
from sjepa.settings_file import from_complete_toml, from_toml, load_preset, preset_names, to_toml


def test_every_preset_survives_printing_and_reading() -> None:
    assert preset_names() == ["base", "compact", "half-hour", "paper", "tiny"]
    for name in preset_names():
        config = load_preset(name)
        assert from_toml(to_toml(config), name) == config


# The paper's table of hyperparameters and its appendix on the architecture, by the fields that hold them.
PAPER = {
    "encoder.hidden_size": 768, "encoder.layers": 6, "encoder.heads": 12, "encoder.inner_size": 3072,
    "encoder.conv_channels": 512, "encoder.position_kernel": 128, "encoder.position_groups": 16,
    "encoder.dropout": 0.1, "encoder.attention_dropout": 0.1, "encoder.activation_dropout": 0.1,
    "encoder.layerdrop": 0.05, "encoder.feature_gradient_scale": 0.1,
    "predictor.heads": 8, "predictor.inner_size": 1536, "predictor.dropout": 0.1, "predictor.positions": 750,
    "mfcc.shift_ms": 20, "mfcc.cepstra": 13,
    "phase1.targets": "mfcc-gmm", "phase2.targets": "online-gmm", "phase1.k": 100, "phase2.k": 500,
    "gmm.kmeans_iterations": 5, "gmm.em_iterations": 20, "gmm.decay": 0.999, "gmm.variance_floor": 1e-6,
    "gmm.update": "parameters", "gmm.reseed": False,
    "phase2.layer_check_every": 10_000, "layer.choice": None, "layer.frames": 2000, "layer.on_change": "carry",
    "train.optimizer": "adamw", "train.beta1": 0.9, "train.beta2": 0.99, "train.weight_decay": 1e-3,
    "phase1.lr": 1e-4, "phase2.lr": 2.5e-5,
    "batches.seconds": 192 * 15.0, "batches.max_seconds": 15.0,
    "ema.slow": 0.9999, "ema.fast": 0.999, "ema.schedule": "switched", "phase2.ema_switch_every": 20_000,
    "mask.ratio": 0.65, "mask.span": 10,
    "phase1.visible_loss_until": 1.0, "phase1.augment_until": 1.0, "train.visible_path": "encoder",
    "augment.p_noise": 0.25, "augment.p_mix": 0.25, "augment.snr_low": -5.0, "augment.snr_high": 20.0,
    "augment.mix_low": -5.0, "augment.mix_high": 5.0,
}  # fmt: skip
# What the paper leaves open, or what it does not have at all.
OURS = {
    "mask.method": "distinct", "mask.lowest": None, "mask.views": 1, "mfcc.mels": 23, "mfcc.context": 0,
    "gmm.relative_variance_floor": 1e-3, "gmm.minimum_count": 0.01, "gmm.reservoir": 200_000, "gmm.fit_hours": 100.0,
    "layer.smoothing": 0.5, "layer.utterances": 64, "layer.hysteresis": 0.0,
    "phase1.steps": 400_000, "phase2.steps": 400_000, "phase1.warmup": 20_000, "phase2.warmup": 0,
    "phase1.schedule": "constant", "phase2.schedule": "constant", "phase1.layer_check_every": 10_000,
    "phase2.visible_loss_until": 0.5, "phase2.augment_until": 0.5, "train.clip": 1.0, "train.precision": "bf16",
    "train.masked_path": "predictor", "encoder.attention_start": 0.0, "predictor.attention_start": 0.0,
    "predictor.position_start": "sinusoid", "predictor.position_base": 10_000.0, "augment.mix_longest": 0.5,
    "augment.speed": 0.0, "augment.equalizer": 0.0, "phase2.refit_every": 0,
} | {
    f"phase{number}.{name}": value for number in (1, 2) for name, value in {
        "hard": False, "temperature": 1.0, "centred": False, "dimensions": 0, "frontend_until": 1.0}.items()
}  # fmt: skip
# What the file leaves to defaults: where and how a run is computed, and fields that its schedule does not use.
LEFT_OUT = {
    "seed", "init_from", "augment.noise", "augment.speed_targets", "train.log_every", "phase1.ema_switch_every",
    "phase1.refit_every", "phase1.final_lr", "phase2.final_lr", "phase1.batch_seconds", "phase2.batch_seconds",
    "phase1.buckets", "phase2.buckets", "phase1.directions", "phase2.directions", "train.muon_momentum",
    "train.muon_weight_decay",
} | FREE  # fmt: skip


def test_the_settings_of_a_run_keep_their_number_of_phases() -> None:
    one = dataclasses.replace(Config(), phases=Config().phases[:1])
    assert from_complete_toml(to_toml(one), "config.toml") == one
    with pytest.raises(UserError, match=r"^config\.toml: there are no phases"):
        from_complete_toml("seed = 3\n", "config.toml")


def test_the_paper_preset_states_every_value_of_the_papers_table() -> None:
    """In the file itself, so that no default can change what `paper` means."""
    flat = flatten(load_preset("paper"))
    assert {name: flat[name] for name in PAPER | OURS} == PAPER | OURS
    text = resources.files("sjepa.presets").joinpath("paper.toml").read_text("utf-8")
    written = {f"{section}.{name}" for section, values in tomllib.loads(text).items() for name in values}
    assert written == {*PAPER, *OURS, "batches.buckets"}
    assert flat["batches.buckets"] == (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 12.0, 14.0, 15.0)
    assert set(flat) - written == LEFT_OUT  # a new field is decided on here


def test_the_table_of_presets_in_the_documents_is_that_of_the_presets() -> None:
    page = Path(__file__).parents[1] / "docs" / "deviations.md"
    lines = [line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    header, _, *rows = [[cell.strip(" `") for cell in line.split("|")[1:-1]] for line in lines]
    presets = [flatten(load_preset(name)) for name in header[1:]]
    assert header[1:] == ["paper", "half-hour", "tiny"]
    assert len(rows) > 20
    for name, *cells in rows:
        for cell, preset in zip(cells, presets, strict=True):
            value = preset[name]
            if isinstance(value, bool):
                assert cell == ("yes" if value else "no"), name
            elif isinstance(value, int | float):
                assert float(cell.replace(",", "")) == value, name
            else:
                assert cell == (value or "none"), name


def test_none_is_written_out_in_a_file_that_takes_a_value_back() -> None:
    assert from_toml('[layer]\nchoice = "none"\n[mask]\nlowest = "none"', "file") == Config()
    with pytest.raises(UserError, match=r"layer\.choice = 'nine' should be of type int or \"none\""):
        from_toml('[layer]\nchoice = "nine"', "file")


def test_a_whole_number_is_accepted_for_a_share() -> None:
    lowest = from_toml("[mask]\nlowest = 0", "file").mask.lowest
    assert (type(lowest), lowest) == (float, 0.0)
    phase = from_toml("[phase1]\nwarmup = 0", "file").phases[0]
    assert type(phase.warmup) is int  # steps, not a share


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("seed = 7", encoding="utf-8-sig")
    assert load_preset(str(tmp_path / "mine.toml")).seed == 7


def test_base_has_the_size_of_hubert_base_and_the_papers_recipe() -> None:
    from sjepa import Encoder

    base, paper = load_preset("base"), load_preset("paper")
    assert [difference.name for difference in differences(paper, base)] == ["encoder.layers"]
    with torch.device("meta"):
        encoder = Encoder(base.encoder)
    assert sum(p.numel() for p in encoder.parameters()) == 94_371_712 - 768  # HuBERT Base without its mask embedding


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[phase2]\nkk = 5", "unknown key phase2.kk (did you mean k?)"),
        ("[gnm]\ndecay = 0.5", "unknown key gnm (did you mean gmm?)"),
        ("[phase2]\nk = 'many'", "phase2.k = 'many' should be of type int"),
        ("[phase2]\nk = 5.5", "phase2.k = 5.5 should be of type int"),
        ("[phase2]\ntargets = 'online-gm'", "did you mean online-gmm?"),
        ("[phase2]\nwarmup = 1.5", "a fraction of the phase lies between 0 and 1"),
        (
            "[phase1]\ntargets = 'online-gmm'",
            "phase 1 has no trained encoder to take targets from; give one with init_from",
        ),
        ("init_from = 'x'\n[phase1]\ntargets = 'same'", "phase 1 has no trained encoder to take targets from"),
        ("[encoder]\nheads = 7", "does not divide"),
        ("[phase1]\ndimensions = 40", "phase1.dimensions = 40: the features have only 39"),
        (
            "[phase2]\ndirections = 'discriminant'",
            "phase2.directions = 'discriminant': set phase2.dimensions to a number",
        ),
        (
            "[phase2]\ndirections = 'discriminant'\nk = 9\ndimensions = 9",
            "set phase2.dimensions to a number from 1 to 8",
        ),
        ("[phase2]\ndimensions = 800", "phase2.dimensions = 800: the features have only 768"),
        ("[mfcc]\ncontext = 21", "mfcc.context = 21: it should lie between 0 and 20"),
        ("[mfcc]\ncepstra = 24", "mfcc.cepstra = 24: there are only 23 mel filters (mfcc.mels)"),
        (
            "[ema]\nschedule = 'cosine'\n[phase2]\nsteps = 1001\nema_switch_every = 10",
            "phase2.ema_switch_every = 10: the decay of the target encoder may change at most 100 times per phase, so "
            "give at least 11 steps",
        ),
        ("[layer]\nchoice = 6", "the encoder has layers 0 to 5"),
        ("seed = -1", "seed = -1: a seed is not below 0"),
        ("[mask]\nlowest = 0.7", "mask.lowest = 0.7: it should lie between 0 and mask.ratio"),
        ("[encoder]\nattention_start = -1.0", "encoder.attention_start = -1.0: it should not be below 0"),
        ("[predictor]\nattention_start = -1.0", "predictor.attention_start = -1.0: it should not be below 0"),
        ("[batches]\nbuckets = 3.0", "should be a list"),
        ("gmm = 4", "gmm is a section, not a value"),
        ("[gmm", "not valid TOML"),
    ],
)
def test_what_does_not_fit_is_refused_with_a_reason(text: str, words: str) -> None:
    with pytest.raises(UserError) as refusal:
        from_toml(text, "file")
    assert words in str(refusal.value)
    assert str(refusal.value).startswith("file")
    assert "\n" not in str(refusal.value)


def test_an_unknown_preset_gets_a_suggestion() -> None:
    with pytest.raises(UserError, match=r"did you mean half-hour\?.*presets are base, compact, half-hour, paper, tiny"):
        load_preset("halfhour")


def test_differences_name_what_matters_and_leave_out_what_does_not() -> None:
    config = Config()
    other = dataclasses.replace(config, seed=1, train=dataclasses.replace(config.train, device="cpu"))
    assert [str(difference) for difference in differences(config, other)] == ["seed was 0, now 1"]


def test_cadences_are_steps_or_fractions() -> None:
    config = from_toml("[phase1]\nsteps = 200\nwarmup = 0.1\nvisible_loss_until = 50\nlr = 1.0", "file")
    phase = config.schedule()[0]
    assert [phase.lr(step) for step in (0, 9, 19, 20, 199)] == [0.05, 0.5, 1.0, 1.0, 1.0]
    assert phase.uses_visible_loss(49)
    assert not phase.uses_visible_loss(50)


def test_the_learning_rate_is_continuous_over_the_boundary() -> None:
    text = "[phase1]\nsteps = 10\nlr = 1.0\nwarmup = 0\n[phase2]\nsteps = 10\nlr = 0.5\nwarmup = 5\nschedule = 'cosine'"
    first, second = from_toml(text, "file").schedule()
    assert first.lr(9) == 1.0
    assert [round(second.lr(step), 3) for step in (10, 12, 14)] == [0.9, 0.7, 0.5]
    assert second.lr(19) < 0.2


@pytest.mark.parametrize(
    ("section", "key", "value", "words"),
    [
        ("mask", "ratio", 1.2, "between 0 and 1"),
        ("train", "keep_checkpoints", 0, "greater than 0"),
        ("train", "log_every", 0, "greater than 0"),
        ("phase1", "steps", 0, "greater than 0"),
        ("phase2", "temperature", 0.0, "greater than 0"),
        ("mfcc", "shift_ms", 15, "one of 10, 20"),
        ("mfcc", "shift_ms", 20.0, "one of 10, 20"),
    ],
)
def test_values_that_cannot_work_are_refused_by_name(section: str, key: str, value: float, words: str) -> None:
    with pytest.raises(UserError, match=rf"{section}\.{key} = {value}.*{words}"):
        from_toml(f"[{section}]\n{key} = {value}\n", "test")


def test_a_settings_file_builds_on_a_preset_or_on_another_file(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "mine.toml").write_text(
        "extends = 'half-hour'\nseed = 3\n[phase2]\nk = 700\n[layer]\nchoice = 'none'\n"
    )
    (tmp_path / "below" / "other.toml").write_text("extends = '../mine.toml'\n[phase2]\nlr = 0.5\n[phase3]\nk = 9\n")
    preset, mine = load_preset("half-hour"), load_preset(str(tmp_path / "mine.toml"))
    changed = {d.name: d.new for d in differences(preset, mine)}
    assert changed == {"seed": 3, "phase2.k": 700, "layer.choice": None}
    other = load_preset(str(tmp_path / "below" / "other.toml"))
    assert other.phases[:2] == (mine.phases[0], dataclasses.replace(mine.phases[1], lr=0.5))
    assert other.phases[2] == dataclasses.replace(other.phases[1], k=9)
    assert from_toml(to_toml(other), "printed") == other


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("extends = 'a.toml'", "a.toml extends itself: "),
        ("extends = 'b.toml'", "a.toml extends itself: "),
        ("extends = 'c.toml'", "c.toml, which "),
        ("extends = 'halfhour'", "there is no preset 'halfhour' (did you mean half-hour?)"),
        ("extends = 3", "a.toml: extends = 3 should be the name of a preset or the path of a TOML file"),
        ("extends = 'paper'\n[phase2]\nkk = 5", "a.toml: unknown key phase2.kk (did you mean k?)"),
        ("[phase2]\nk = 'none'", "phase2.k = 'none' should be of type int"),
    ],
)
def test_a_settings_file_that_cannot_be_built_is_refused(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "a.toml").write_text(text)
    (tmp_path / "b.toml").write_text("extends = './a.toml'")
    with pytest.raises(UserError) as refusal:
        load_preset(str(tmp_path / "a.toml"))
    assert words in str(refusal.value)

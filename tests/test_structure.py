"""Imports flow downwards: no layer imports one above it, and no two files import each other in a circle."""

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import sjepa

SOURCE = Path(sjepa.__file__).parent
# From the top to the bottom. A module may import its own layer and those below it.
LAYERS = (
    {"__main__", "cli"},
    {"commands"},
    {"demo", "s3prl_upstream", "sweep", "watch"},
    {"report"},
    {"analysis"},
    {"embed", "export"},
    {"evaluate"},
    {"speed"},
    {"train"},
    {"runs"},
    {"config_options", "settings_file"},
    {"config"},
    {"phases"},
    {"targets"},
    {"data"},
    {"model"},
    {"audio"},
    {"cuda_graphs", "device", "distributed", "locks", "memory", "progress", "stopping", "subcommands", "torch_private"},
    {"bounds", "counts", "cpu_load", "durations", "errors", "fields", "files"}
    | {"lookahead", "option_help", "phase_names", "seeds", "version"},
)


def imports(tree: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """Every import, also those inside functions, but not those that only a type checker sees."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield node
        yield from imports(node)


def imported_modules(path: Path, names: set[str]) -> set[str]:
    """Names of our modules that a file imports."""
    found: set[str] = set()
    for node in imports(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        else:
            assert node.level == 0, f"{path}:{node.lineno}: use absolute imports"
            inner = {alias.name: f"{node.module}.{alias.name}" for alias in node.names}
            found |= {whole if whole in names else str(node.module) for whole in inner.values()}
    return found & names


@pytest.fixture(scope="module")
def graph() -> dict[str, set[str]]:
    """The modules of the package, each with those that it imports."""
    files = {}
    for path in SOURCE.rglob("*.py"):
        parts = path.relative_to(SOURCE.parent).with_suffix("").parts
        files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return {name: imported_modules(path, set(files)) - {name} for name, path in files.items()}


def test_no_modules_import_each_other_in_a_circle(graph: dict[str, set[str]]) -> None:
    assert len(graph) > 200
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" <- ".join(error.args[1]))


def test_no_layer_imports_one_above_it(graph: dict[str, set[str]]) -> None:
    heights = {f"sjepa.{name}": -place for place, layer in enumerate(LAYERS) for name in layer}
    heights |= {"sjepa": -len(LAYERS) + 1, "sjepa.presets": -len(LAYERS) + 1}
    height = {module: heights[".".join(module.split(".")[:2])] for module in graph}
    upward = [f"{a} imports {b}" for a, found in graph.items() for b in found if height[b] > height[a]]
    assert not upward

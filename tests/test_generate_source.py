import ast
import subprocess
import sys
from pathlib import Path

import pytest

from capturelint.planning.probe import Geometry, Kind, Layout, Shape
from capturelint.planning.runner import Sizes, Source, runner_source

FEW = Sizes((1, 2, 4, 8), 8, 2048, 8)
MANY = Sizes(tuple(range(3, 3 + 64 * 7, 7)), 512, 4096, 32)
GEOMETRY = Geometry(28, 8, 128, "torch.bfloat16")
TOKENS = ("input_ids", Layout.ROWS)
SHAPES = {
    "cache": Shape(
        Kind.CACHE,
        TOKENS,
        ("position_ids", Layout.ROWS),
        151936,
        ".logits",
        cache="past_key_values",
        mask="attention_mask",
        use_cache=True,
        whole_prompt=True,
        geometry=GEOMETRY,
    ),
    "cache-flat": Shape(
        Kind.CACHE, ("tokens", Layout.FLAT), ("pos", Layout.FLAT), 80, "[0][:, None]", cache="cache", geometry=GEOMETRY
    ),
    "setup": Shape(
        Kind.SETUP,
        ("idx", Layout.ROWS),
        ("input_pos", Layout.SHARED),
        96,
        "",
        whole_prompt=True,
        cache_names=("k_cache", "v_cache"),
    ),
    "setup-by-step": Shape(
        Kind.SETUP, ("idx", Layout.FLAT), ("input_pos", Layout.SHARED), 96, "[:, None]", cache_names=("cache",)
    ),
    "plain": Shape(Kind.PLAIN, ("tokens", Layout.FLAT), ("positions", Layout.FLAT), 64, "[:, None]"),
    "plain-scalar": Shape(Kind.PLAIN, ("tokens", Layout.ROWS), ("pos", Layout.SCALAR), 64, ""),
    "plain-counted": Shape(Kind.PLAIN, ("token", Layout.FLAT), None, 64, "[:, None]"),
}
SOURCES = {
    "file": Source(path=Path("models/model.py")),
    "directory": Source(directory="/models/Qwen3-0.6B"),
    "tiny": Source(model_type="qwen3"),
}
MODULES = [
    (source, shape, sizes)
    for source in SOURCES
    for shape in SHAPES
    for sizes in (FEW, MANY)
    if source == "file" or shape == "cache"
]


@pytest.fixture(scope="module")
def modules(tmp_path_factory):
    """Every kind of module that can be written."""
    folder = tmp_path_factory.mktemp("runners")
    for at, (source, shape, sizes) in enumerate(MODULES):
        path = folder / f"runner_{at}.py"
        path.write_text(runner_source(SOURCES[source], SHAPES[shape], sizes, path))
    return folder


@pytest.mark.parametrize("length", [88, 100, 120])
def test_modules_are_formatted_as_ruff_would(modules, length):
    ran = ruff("format", "--check", "--line-length", str(length), str(modules))
    assert ran.returncode == 0, ran.stdout


def test_modules_pass_ruffs_rules(modules):
    rules = "E,F,W,I,UP,B,C4,SIM,RUF,PIE,RET,D1,ANN"
    ran = ruff("check", "--line-length", "88", "--select", rules, "--ignore", "D107", str(modules))
    assert ran.returncode == 0, ran.stdout


def ruff(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "ruff", *arguments, "--isolated"], capture_output=True, text=True)


def test_modules_import_torch_and_the_standard_library_alone(modules):
    imported = {name.partition(".")[0] for path in modules.glob("*.py") for name in imports(path)}
    assert imported - set(sys.stdlib_module_names) == {"torch", "transformers"}


def test_transformers_is_imported_only_to_build_its_own_model():
    text = runner_source(SOURCES["file"], SHAPES["cache"], FEW, Path("runner.py"))
    assert "transformers" not in {name for node in ast.walk(ast.parse(text)) for name in imported_by(node)}


def imports(path: Path) -> list[str]:
    return [name for node in ast.walk(ast.parse(path.read_text())) for name in imported_by(node)]


def imported_by(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module] if isinstance(node, ast.ImportFrom) and node.module else []


def test_a_target_is_found_from_where_the_module_lies(tmp_path):
    source = Source(path=tmp_path / "models" / "model.py")
    text = runner_source(source, SHAPES["setup"], FEW, tmp_path / "serving" / "runner.py")
    assert '    "../models/model.py",\n' in text


def test_a_path_is_a_literal_and_never_code():
    hostile = Source(directory='/models/"""\nraise SystemExit\n"""\\')
    texts = [
        runner_source(source, SHAPES["cache"], FEW, Path("runner.py")) for source in (SOURCES["directory"], hostile)
    ]
    plain, attacked = (ast.parse(text).body for text in texts)
    assert [type(node) for node in plain] == [type(node) for node in attacked]

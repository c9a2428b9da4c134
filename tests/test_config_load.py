from pathlib import Path

import pytest

from capturelint.config import Config, load_config, require_rules
from capturelint.errors import ConfigError
from capturelint.vocabulary import Confidence


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def fault(path: Path, text: str) -> str:
    write(path, text)
    with pytest.raises(ConfigError) as caught:
        load_config(path.parent)
    return str(caught.value).replace(str(path), path.name)


def test_no_file_is_no_fault(tmp_path):
    assert load_config(tmp_path) == Config(root=tmp_path)


def test_every_key_is_read(tmp_path):
    path = write(
        tmp_path / "pyproject.toml",
        """\
[tool.capturelint]
entry = ["pkg.model:step"]
bind = { model = "pkg.model:Decoder" }
follow = ["transformers"]
torch = ">=2.6"
confidence = "certain"
select = ["host-sync"]
ignore = "upload"
exclude = ["old"]
include = ["*.py"]
baseline = "ci/baseline.json"
cache-dir = ".cache"

[tool.capturelint.per-file-ignores]
"tests/*" = ["host-sync"]
""",
    )
    assert load_config(tmp_path) == Config(
        root=tmp_path,
        path=path,
        entry=("pkg.model:step",),
        bind=(("model", "pkg.model:Decoder"),),
        follow=("transformers",),
        torch=">=2.6",
        confidence=Confidence.CERTAIN,
        select=("host-sync",),
        ignore=("upload",),
        exclude=("old",),
        include=("*.py",),
        baseline=tmp_path / "ci/baseline.json",
        cache_dir=tmp_path / ".cache",
        per_file_ignores=(("tests/*", ("host-sync",)),),
    )


def test_the_nearest_ancestor_wins(tmp_path):
    write(tmp_path / "pyproject.toml", "[tool.capturelint]\ntorch = '2.6'\n")
    write(tmp_path / "sub/capturelint.toml", "torch = '2.7'\n")
    start = write(tmp_path / "sub/deep/m.py", "")
    assert load_config(start).torch == "2.7"


def test_our_own_file_wins_in_one_directory(tmp_path):
    write(tmp_path / "pyproject.toml", "[tool.capturelint]\ntorch = '2.6'\n")
    write(tmp_path / "capturelint.toml", "torch = '2.7'\n")
    assert load_config(tmp_path).torch == "2.7"


def test_a_project_file_without_our_table_is_passed_over(tmp_path):
    write(tmp_path / "pyproject.toml", "[tool.capturelint]\ntorch = '2.6'\n")
    write(tmp_path / "sub/pyproject.toml", "[project]\nname = 'capturelint-plugin'\n")
    assert load_config(tmp_path / "sub").torch == "2.6"


def test_a_broken_file_of_another_tool_is_not_ours_to_report(tmp_path):
    write(tmp_path / "pyproject.toml", "[project\n")
    assert load_config(tmp_path).path is None


def test_the_named_file_is_read_and_nothing_else(tmp_path):
    write(tmp_path / "capturelint.toml", "torch = '2.6'\n")
    named = write(tmp_path / "ci/strict.toml", "torch = '2.7'\n")
    assert load_config(tmp_path, named).torch == "2.7"


def test_a_named_file_that_is_missing_is_a_fault(tmp_path):
    with pytest.raises(ConfigError, match="the configuration cannot be read"):
        load_config(tmp_path, tmp_path / "gone.toml")


def test_an_unknown_key_names_file_line_and_nearest_key(tmp_path):
    assert fault(tmp_path / "pyproject.toml", "[project]\nentri = 1\n[tool.capturelint]\n\nentri = ['x']\n") == (
        "pyproject.toml:5: unknown key 'entri'; did you mean 'entry'?"
    )


def test_a_wrong_type_names_the_key_and_the_type(tmp_path):
    assert fault(tmp_path / "capturelint.toml", "select = 3\n") == (
        "capturelint.toml:1: 'select' must be a list of texts, got 3"
    )


@pytest.mark.parametrize(
    ("level", "cure"),
    [("certein", "did you mean 'certain'?"), ("high", "choose from possible, likely, certain")],
)
def test_an_unknown_confidence_names_the_levels(tmp_path, level, cure):
    assert fault(tmp_path / "capturelint.toml", f"confidence = '{level}'\n") == (
        f"capturelint.toml:1: unknown confidence '{level}'; {cure}"
    )


@pytest.mark.parametrize("value", ["latest", ">=two", "2.x"])
def test_torch_is_a_version_or_a_range(tmp_path, value):
    assert "'torch' must be a version or a range" in fault(tmp_path / "capturelint.toml", f"torch = '{value}'\n")


def test_bindings_may_be_a_list(tmp_path):
    write(tmp_path / "capturelint.toml", "bind = ['model=pkg:Decoder']\n")
    assert load_config(tmp_path).bind == (("model", "pkg:Decoder"),)


def test_a_binding_without_a_class_is_a_fault(tmp_path):
    assert "must hold PARAM=MODULE:CLASS" in fault(tmp_path / "capturelint.toml", "bind = ['model']\n")


def test_rules_of_a_pattern_are_a_list(tmp_path):
    assert fault(tmp_path / "capturelint.toml", "[per-file-ignores]\n'a/*' = 1\n") == (
        "capturelint.toml:2: 'a/*' must be a list of texts, got 1"
    )


@pytest.mark.parametrize(
    ("text", "where"), [("\n[[select\n", "capturelint.toml:2:9: "), ("entry = [\n", "capturelint.toml: ")]
)
def test_invalid_toml_names_the_file_and_the_place(tmp_path, text, where):
    assert fault(tmp_path / "capturelint.toml", text).startswith(f"{where}not valid TOML: ")


@pytest.mark.parametrize("key", ["torch = '2.7'\nselect", "exclude = []\nignore", "[per-file-ignores]\n'a/*'"])
def test_an_unknown_rule_names_file_and_line(tmp_path, key):
    write(tmp_path / "capturelint.toml", f"{key} = ['host-snyc']\n")
    with pytest.raises(ConfigError, match=r"capturelint\.toml:2: unknown rule 'host-snyc'; did you mean 'host-sync'"):
        require_rules(load_config(tmp_path))


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path):
    (tmp_path / "capturelint.toml").write_bytes(b"\xef\xbb\xbftorch = '2.7'\n")
    assert load_config(tmp_path).torch == "2.7"


@pytest.mark.parametrize(
    ("name", "content"), [("capturelint.toml", b"# \xe9"), ("pyproject.toml", b"[tool.capturelint]\n# \xe9")]
)
def test_a_file_of_ours_that_cannot_be_decoded_is_a_fault(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=f"{name}: the configuration cannot be read: not valid utf-8: byte 0xe9"):
        load_config(tmp_path)


def test_a_directory_of_that_name_is_a_fault_and_another_tools_is_not(tmp_path):
    (tmp_path / "pyproject.toml").mkdir()
    assert load_config(tmp_path).path is None
    (tmp_path / "capturelint.toml").mkdir()
    with pytest.raises(ConfigError, match=r"capturelint\.toml: the configuration cannot be read: Is a directory"):
        load_config(tmp_path)

import itertools
import sysconfig
from pathlib import Path

import capturelint
from capturelint.runtime.project import Project, first_error, project_roots


def test_the_project_around_a_target_belongs_to_it(tmp_path):
    (tmp_path / "pyproject.toml").touch()
    target = tmp_path / "tests" / "decode.py"
    target.parent.mkdir()
    assert project_roots(target) == (target.parent.resolve(), tmp_path.resolve())


def test_without_a_project_the_folder_is_all(tmp_path):
    assert project_roots(tmp_path / "decode.py")[0] == tmp_path.resolve()


def test_environments_the_standard_library_and_this_package_are_foreign(tmp_path):
    project = Project((tmp_path, Path("/")))
    assert project.owns(str(tmp_path / "model.py"))
    assert not project.owns(str(tmp_path / ".venv" / "lib" / "site-packages" / "torch" / "nn.py"))
    assert not project.owns(sysconfig.get_path("stdlib") + "/random.py")
    assert not project.owns(str(Path(capturelint.__file__).parent / "runtime" / "eager.py"))
    assert not project.owns("<string>")


def test_an_installed_package_may_be_the_target(tmp_path):
    root = tmp_path / "site-packages" / "transformers"
    assert Project((root,)).owns(str(root / "cache_utils.py"))


def chained(*errors):
    """The last error, raised while the one before was handled, and so on."""
    for before, after in itertools.pairwise(errors):
        after.__context__ = before
    return errors[-1]


def test_the_first_refusal_of_the_chain_is_the_cause():
    refused, later = RuntimeError("not permitted"), RuntimeError("previous error")
    assert first_error(chained(refused, later), ("not permitted",)) is refused


def test_an_error_that_was_handled_before_is_not_the_cause():
    handled, refused = KeyError("k"), RuntimeError("not permitted")
    assert first_error(chained(handled, refused, RuntimeError("previous error")), ("not permitted",)) is refused


def test_without_a_refusal_the_first_error_is_the_cause():
    first = ValueError("no")
    assert first_error(chained(first, RuntimeError("previous error")), ("not permitted",)) is first

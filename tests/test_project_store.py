"""Records in a directory: what is kept is read back, and nothing that can happen to the directory fails a run."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import platformdirs
import pytest

from capturelint.catalog import is_plain, parse_yaml, read_yaml
from capturelint.store import DAY_S, UNREAD_S, Store, digest, user_directory

KEY = digest("a")
RULES = sorted((Path(__file__).parents[1] / "rules").glob("*.yaml"))


@pytest.fixture
def store(tmp_path) -> Store:
    return Store(tmp_path / "cache")


def test_a_record_is_read_back_by_another_run(store):
    assert store.put(KEY, {"n": 1, "text": "\u00e9\x1b"})
    assert Store(store.directory).get(KEY) == {"n": 1, "text": "\u00e9\x1b"}


def test_a_key_that_was_not_kept_has_no_record(store):
    assert store.get(KEY) is None


def test_parts_of_a_key_do_not_run_into_each_other():
    assert len({digest("ab", "c"), digest("a", "bc"), digest("abc"), digest("ab", "c", "")}) == 4


@pytest.mark.parametrize("damage", [b"", b"{", b"\n", b"\xff\x00", b"[]", b"0" * 50])
def test_a_damaged_record_is_no_record(store, damage):
    store.put(KEY, {"n": 1})
    store.path(KEY).write_bytes(damage)
    assert store.get(KEY) is None


def test_one_changed_byte_is_damage(store):
    store.put(KEY, {"n": 1})
    content = store.path(KEY).read_bytes()
    store.path(KEY).write_bytes(content.replace(b"1}", b"2}"))
    assert store.get(KEY) is None


def test_the_record_of_another_key_is_no_record(store):
    store.put(KEY, {"n": 1})
    other = digest("b")
    store.path(other).parent.mkdir(exist_ok=True)
    store.path(other).write_bytes(store.path(KEY).read_bytes())
    assert store.get(other) is None


def test_a_directory_that_cannot_be_made_keeps_nothing(tmp_path):
    (tmp_path / "file").write_text("")
    store = Store(tmp_path / "file" / "cache")
    assert (store.put(KEY, {}), store.get(KEY)) == (False, None)


def test_a_full_disk_keeps_nothing(store, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    assert not store.put(KEY, {"n": 1})
    assert [path for path in store.directory.rglob("*") if path.suffix in (".tmp", ".json")] == []


def test_a_directory_with_other_files_in_it_is_not_used(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    assert not Store(tmp_path).put(KEY, {})
    assert os.listdir(tmp_path) == ["notes.txt"]


def test_the_directory_is_kept_out_of_git_and_backups(store):
    store.put(KEY, {})
    assert (store.directory / ".gitignore").read_text() == "*\n"
    assert (store.directory / "CACHEDIR.TAG").read_text().startswith("Signature: 8a477f597d28d172789f06886806bc55")


def test_clear_removes_records_of_every_layout_and_nothing_else(store):
    store.put(KEY, {})
    older = store.directory / "0" / "ab" / f"{'c' * 38}.json"
    older.parent.mkdir(parents=True)
    older.write_text("")
    mine = [store.directory / "notes.json", store.directory / "1" / KEY[:2] / "mine.json"]
    for path in mine:
        path.write_text("")
    assert store.clear() == 2
    assert [path.exists() for path in mine] == [True, True]
    assert store.get(KEY) is None


def test_clear_leaves_a_directory_alone_that_is_no_cache(tmp_path):
    shelf = tmp_path / "1" / "ab"
    shelf.mkdir(parents=True)
    (shelf / f"{'c' * 38}.json").write_text("")
    assert Store(tmp_path).clear() == 0


def test_nothing_is_removed_through_a_link(store, tmp_path):
    store.put(KEY, {})
    (tmp_path / "mine" / "ab").mkdir(parents=True)
    kept = tmp_path / "mine" / "ab" / f"{'c' * 38}.json"
    kept.write_text("")
    (store.directory / "7").symlink_to(tmp_path / "mine", target_is_directory=True)
    store.clear()
    assert kept.exists()


def test_what_nobody_reads_for_a_month_is_removed(store):
    store.put(KEY, {})
    used = digest("used")
    store.put(used, {})
    later = os.stat(store.path(KEY)).st_mtime + UNREAD_S + DAY_S
    for path in (store.path(KEY), store.directory / "pruned"):
        os.utime(path, (0, 0))
    assert Store(store.directory, now=lambda: later - 2 * DAY_S).put(digest("new"), {})
    assert (store.get(KEY), store.get(used)) == (None, {})


def test_reading_counts_as_use(store):
    store.put(KEY, {})
    os.utime(store.path(KEY), (0, 0))
    store.get(KEY)
    assert os.stat(store.path(KEY)).st_mtime > 0


def test_runs_that_share_a_directory_never_see_half_a_record(store):
    records = [{"text": letter * 100_000} for letter in "ab"]
    store.put(KEY, records[0])
    ended = threading.Event()

    def write() -> None:
        while not ended.is_set():
            for record in records:
                Store(store.directory).put(KEY, record)

    writer = threading.Thread(target=write)
    writer.start()
    seen = [store.get(KEY) in records for _ in range(50)]
    ended.set()
    writer.join()
    assert all(seen)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere platformdirs itself is asked")
@pytest.mark.parametrize("variable", ["", "/somewhere/else"])
def test_the_directory_is_the_one_of_platformdirs(monkeypatch, variable):
    monkeypatch.delenv("CAPTURELINT_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", variable)
    assert user_directory() == platformdirs.user_cache_path("capturelint", appauthor=False)


def test_a_user_without_a_home_keeps_nothing(monkeypatch):
    monkeypatch.delenv("CAPTURELINT_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    assert user_directory() is None or sys.platform != "linux"


@pytest.mark.parametrize("path", RULES, ids=[path.stem for path in RULES])
def test_a_kept_catalogue_is_what_the_yaml_says(path):
    said = parse_yaml(path, path.read_bytes())
    assert is_plain(said), "JSON could not give it back"
    assert read_yaml(path) == read_yaml(path) == json.loads(json.dumps(said)) == said


def test_a_kept_catalogue_needs_no_yaml_library():
    code = "import capturelint.catalog as c, sys; c.load_operations(), c.load_rules(); sys.exit('yaml' in sys.modules)"
    runs = [subprocess.run([sys.executable, "-c", code], check=False).returncode for _ in range(2)]
    assert runs[-1] == 0

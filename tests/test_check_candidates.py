"""What a run that found no entry proposes to name."""

import subprocess
import sys

MODEL = """\
import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.k_cache = None

    def forward(self, x):
        if self.k_cache is not None:
            x = torch.cat([self.k_cache, x], dim=1)
        self.k_cache = x
        return x


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = Attention()

    def forward(self, ids):
        return self.attention(ids)
"""


def check(directory, *words):
    command = [sys.executable, "-m", "capturelint", "check", "serve.py", "--format", "concise", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=directory).stdout.splitlines()


def test_the_module_that_is_no_part_is_proposed_first(tmp_path):
    (tmp_path / "serve.py").write_text(MODEL)
    hint = "to check one of these, add --entry serve.py:Model.forward or --entry serve.py:Attention.forward"
    assert hint in check(tmp_path)


def test_a_model_of_any_name_is_proposed_before_its_parts(tmp_path):
    chat = MODEL.replace("class Model", "class Chat").replace("k_cache", "past") + "\n\nmodel = Chat()\n"
    (tmp_path / "serve.py").write_text(chat)
    hint = "to check this one, add --entry serve.py:Chat.forward"
    assert hint in check(tmp_path)


def test_what_is_proposed_finds_the_hazard(tmp_path):
    (tmp_path / "serve.py").write_text(MODEL)
    found = check(tmp_path, "--entry", "serve.py:Model.forward")
    assert found[0].startswith("serve.py:12:17: cache-growth ")


def test_nothing_is_proposed_where_there_is_no_module(tmp_path):
    (tmp_path / "serve.py").write_text("x = 1\n")
    assert len(check(tmp_path)) == 2

"""Neovim itself against the language server, set up by the guide as it is written."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import neovim_path

pytestmark = pytest.mark.editor
GUIDE = Path(__file__).parents[1] / "docs" / "editors.md"
SOURCE = """\
import torch


def decode_step(model, token: torch.Tensor):
    done = token.sum().item()
    return token * done
"""
DRIVE = """
local function wait(what) assert(vim.wait(60000, what, 20)) end
local function line() return vim.api.nvim_buf_get_lines(0, 4, 5, false)[1] end
wait(function() return #vim.diagnostic.get(0) > 0 end)
print(vim.diagnostic.get(0)[1].lnum + 1, vim.diagnostic.get(0)[1].code)
vim.api.nvim_win_set_cursor(0, {5, 12})
vim.lsp.buf.hover()
wait(function() return #vim.api.nvim_list_wins() > 1 end)
print(vim.api.nvim_buf_get_lines(vim.fn.winbufnr(2), 0, 1, false)[1])
vim.lsp.buf.code_action({apply = true, filter = function(action) return action.title:find('not part') ~= nil end})
wait(function() return line():find('capturelint') end)
print(line())
wait(function() return #vim.diagnostic.get(0) == 0 end)
vim.cmd('qa!')
"""


def test_neovim_shows_explains_and_suppresses_a_finding(tmp_path):
    (config := tmp_path / "nvim").mkdir()
    (program := tmp_path / "bin").mkdir()
    (config / "init.lua").write_text("\n".join(re.findall(r"```lua\n(.*?)```", GUIDE.read_text(), re.DOTALL)))
    (program / "capturelint").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m capturelint "$@"\n')
    (program / "capturelint").chmod(0o755)
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    (tmp_path / "model.py").write_text(SOURCE)
    (tmp_path / "drive.lua").write_text(f"local done, why = pcall(function() {DRIVE} end)\nprint(why) vim.cmd('cq!')")
    environment = os.environ | {f"XDG_{kind}_HOME": str(tmp_path) for kind in ("CONFIG", "DATA", "STATE", "CACHE")}
    environment["PATH"] = f"{program}{os.pathsep}{environment['PATH']}"
    ended = subprocess.run(
        [neovim_path(), "--headless", "model.py", "+luafile drive.lua"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.stderr.replace("\r", "").splitlines() == [
        "5 host-sync",
        "# host-sync",
        "    done = token.sum().item()  # capturelint: ignore[host-sync] not part of the captured step",
    ]
    assert ended.returncode == 0

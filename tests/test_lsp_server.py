"""The language server over stdio, asked by a real client as an editor would."""

import asyncio
import sys
from pathlib import Path

import pytest
import pytest_lsp
from lsprotocol import types
from pytest_lsp import ClientServerConfig, LanguageClient, client_capabilities

pytestmark = pytest.mark.asyncio(loop_scope="module")
BAD = """\
import torch


def decode_step(model, token: torch.Tensor):
    ä = "ä𝄞"; done = token.sum().item()
    return token * done
"""
LINE = 4
TIMEOUT_S = 60
SAVED = "import torch\n\n\ndef decode_step(model, token: torch.Tensor):\n    return token * 2\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("workspace")


@pytest_lsp.fixture(
    scope="module", config=ClientServerConfig(server_command=[sys.executable, "-m", "capturelint", "lsp", "--stdio"])
)
async def client(lsp_client: LanguageClient, folder):
    await lsp_client.initialize_session(
        types.InitializeParams(
            capabilities=client_capabilities("visual-studio-code"),
            workspace_folders=[types.WorkspaceFolder(folder.as_uri(), "workspace")],
        )
    )
    yield
    await lsp_client.shutdown_session()


class Document:
    """A file as an editor has it: what is on the disk, and what is typed over it."""

    def __init__(self, client: LanguageClient, path: Path) -> None:
        self.client, self.uri, self.version = client, path.as_uri(), 1
        path.write_text(SAVED, encoding="utf-8")
        client.text_document_did_open(
            types.DidOpenTextDocumentParams(types.TextDocumentItem(self.uri, "python", 1, SAVED))
        )

    def type(self, text: str) -> None:
        self.version += 1
        self.client.text_document_did_change(
            types.DidChangeTextDocumentParams(
                types.VersionedTextDocumentIdentifier(self.version, self.uri),
                [types.TextDocumentContentChangeWholeDocument(text)],
            )
        )

    async def shows(self, number: int) -> list[types.Diagnostic]:
        """What is shown, once it is so many: several documents are published one after the other."""
        for _ in range(TIMEOUT_S * 20):
            found = self.client.diagnostics.get(self.uri, ())
            if len(found) == number:
                return list(found)
            await asyncio.sleep(0.05)
        raise TimeoutError(f"{len(found)} diagnostics, and not {number}")

    async def hover(self, line: int, character: int) -> str:
        answer = await self.client.text_document_hover_async(
            types.HoverParams(types.TextDocumentIdentifier(self.uri), types.Position(line, character))
        )
        return answer.contents.value if answer is not None else ""

    async def actions(self, shown: types.Diagnostic) -> list[types.CodeAction]:
        return await self.client.text_document_code_action_async(
            types.CodeActionParams(
                types.TextDocumentIdentifier(self.uri), shown.range, types.CodeActionContext([shown])
            )
        )


async def test_what_is_typed_is_checked_before_it_is_saved(client, folder):
    document = Document(client, folder / "typed.py")
    document.type(BAD)
    (shown,) = await document.shows(1)
    assert (shown.code, shown.source, shown.severity) == ("host-sync", "capturelint", types.DiagnosticSeverity.Warning)
    assert "`token.sum().item()`" in shown.message
    assert (folder / "typed.py").read_text() == SAVED


async def test_columns_are_counted_as_the_editor_counts(client, folder):
    document = Document(client, folder / "columns.py")
    document.type(BAD)
    (shown,) = await document.shows(1)
    line = BAD.splitlines()[LINE]
    start = len(line[: line.index("token")].encode("utf-16-le")) // 2
    assert (shown.range.start, shown.range.end.character) == (types.Position(LINE, start), start + 18)


async def test_a_repair_clears_the_diagnostic(client, folder):
    document = Document(client, folder / "repaired.py")
    document.type(BAD)
    await document.shows(1)
    document.type(BAD.replace(".item()", ""))
    await document.shows(0)


async def test_hover_shows_the_rules_page(client, folder):
    document = Document(client, folder / "hovered.py")
    document.type(BAD)
    (shown,) = await document.shows(1)
    page = await document.hover(shown.range.start.line, shown.range.start.character)
    assert page.startswith("# host-sync\n")
    assert "## How to repair it" in page
    assert "```diff\n" in page
    assert await document.hover(0, 0) == ""


async def test_a_suppression_with_a_reason_answers_the_diagnostic(client, folder):
    document = Document(client, folder / "suppressed.py")
    document.type(BAD)
    (shown,) = await document.shows(1)
    actions = await document.actions(shown)
    assert [action.title for action in actions] == [
        "Suppress host-sync: not part of the captured step",
        "Suppress host-sync: runs before the capture only",
        "Suppress host-sync, the reason is yours to write",
    ]
    (edit,) = actions[0].edit.changes[document.uri]
    assert edit.new_text == "  # capturelint: ignore[host-sync] not part of the captured step"
    lines = BAD.split("\n")
    document.type("\n".join([*lines[:LINE], lines[LINE] + edit.new_text, *lines[LINE + 1 :]]))
    await document.shows(0)
    assert (await document.hover(LINE, 0)).startswith("# host-sync\n")


async def test_a_suppression_without_a_reason_is_itself_shown(client, folder):
    document = Document(client, folder / "unreasoned.py")
    document.type(BAD.replace(".item()", ".item()  # capturelint: ignore[host-sync]"))
    assert sorted(shown.code for shown in await document.shows(2)) == ["host-sync", "unused-ignore"]


async def test_a_broken_configuration_is_said(client, folder):
    (folder / "capturelint.toml").write_text("selct = []\n")
    document = Document(client, folder / "configured.py")
    document.type(BAD)
    while not client.messages:
        await asyncio.sleep(0.05)
    (folder / "capturelint.toml").unlink()
    assert client.messages[-1].message.endswith("unknown key 'selct'; did you mean 'select'?")

"""The server: diagnostics while typing, the rule's page on hover, suppressions as code actions.

A change is checked once the typing pauses, in a thread, and only the last state of the text is shown. The one surprise:
a finding is published for the file that it is in, also where another, open file leads to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from pathlib import Path

from lsprotocol import types
from pygls.lsp.server import LanguageServer
from pygls.uris import to_fs_path
from pygls.workspace import TextDocument

from capturelint import __version__
from capturelint.errors import CapturelintError
from capturelint.finding import Finding
from capturelint.lsp.findings import SOURCE, Documents, diagnostic, find, range_of
from capturelint.lsp.suppress import OWN, REASONS, suppression
from capturelint.report.cure import example
from capturelint.report.page import page, page_markdown
from capturelint.static.ignores import read_ignores

PAUSE_S = 0.3
PYTHON = "python"
CHANGES = (
    types.INITIALIZED,
    types.TEXT_DOCUMENT_DID_OPEN,
    types.TEXT_DOCUMENT_DID_CHANGE,
    types.TEXT_DOCUMENT_DID_SAVE,
    types.TEXT_DOCUMENT_DID_CLOSE,
)


class Server(LanguageServer):
    """One editor's session."""

    def __init__(self) -> None:
        super().__init__("capturelint", __version__)
        self.found: dict[Path, list[Finding]] = {}
        self.scope = "open"
        self.pending: asyncio.Task[None] | None = None

    def documents(self) -> Documents:
        """What is to be checked."""
        texts = {
            path: document.source
            for document in self.workspace.text_documents.values()
            if (path := path_of(document.uri)) is not None and is_python(document)
        }
        folders = (
            [path_of(folder.uri) for folder in self.workspace.folders.values()] if self.scope == "workspace" else []
        )
        return Documents(texts, tuple(folder for folder in folders if folder is not None))

    def changed(self) -> None:
        """Check again, once nothing more changes."""
        if self.pending is not None:
            self.pending.cancel()
        self.pending = asyncio.get_running_loop().create_task(self.check_soon())

    async def check_soon(self) -> None:
        """Check after a pause and publish; a newer change cancels the wait, and its result is the one that is shown."""
        await asyncio.sleep(PAUSE_S)
        documents = self.documents()
        try:
            found = await asyncio.get_running_loop().run_in_executor(None, find, documents)
        except CapturelintError as error:
            self.window_show_message(types.ShowMessageParams(types.MessageType.Error, f"capturelint: {error}"))
            found = {}
        if documents.texts == self.documents().texts:
            self.publish(found, documents.texts)

    def publish(self, found: dict[Path, list[Finding]], checked: Iterable[Path]) -> None:
        """Show the findings of every file, and none where there are none or no longer any."""
        for path in self.found.keys() | found.keys() | set(checked):
            document = self.document(path.as_uri())
            shown = [diagnostic(finding, document.lines, document.position_codec) for finding in found.get(path, ())]
            self.text_document_publish_diagnostics(
                types.PublishDiagnosticsParams(document.uri, shown, document.version)
            )
        self.found = found

    def document(self, uri: str) -> TextDocument:
        """A document by any spelling of its address, open or not."""
        path = path_of(uri)
        opened = (one for one in self.workspace.text_documents.values() if path_of(one.uri) == path)
        return next(opened, None) or self.workspace.get_text_document(uri)

    def at(self, uri: str, position: types.Position) -> Iterator[Finding]:
        """The findings at a position."""
        path, document = path_of(uri), self.document(uri)
        for finding in self.found.get(path, ()) if path is not None else ():
            place = range_of(finding, document.lines, document.position_codec)
            if order(place.start) <= order(position) <= order(place.end):
                yield finding


def order(position: types.Position) -> tuple[int, int]:
    """Positions of one document can be compared."""
    return position.line, position.character


def path_of(uri: str) -> Path | None:
    """The file of a document; ``None`` for one that is no file."""
    path = to_fs_path(uri) if uri.startswith("file:") else None
    return Path(path) if path else None


def is_python(document: TextDocument) -> bool:
    """Whether a document is Python source; notebooks are checked by ``capturelint check``."""
    return document.language_id == PYTHON or document.uri.endswith(".py")


def rule_page(rule: str) -> str:
    """A rule's page for a small window: what happens, the cure, two examples of each kind."""
    text = page_markdown(page(rule), every=False)
    cure = example(rule)
    if cure is None:
        return text
    diff = "\n".join(f"{line.kind} {line.text}".rstrip() for line in cure.lines)
    head, _, rest = text.partition("## Bad")
    return f"{head}```diff\n{diff}\n```\n\n## Bad{rest}"


def new_server() -> Server:
    """A server with everything that it answers."""
    server = Server()

    @server.feature(types.INITIALIZE)
    def initialize(params: types.InitializeParams) -> None:
        wanted = params.initialization_options
        if isinstance(wanted, dict) and wanted.get("scope") == "workspace":
            server.scope = "workspace"

    for method in CHANGES:
        server.feature(method)(lambda params: server.changed())

    @server.feature(types.TEXT_DOCUMENT_HOVER)
    def hover(params: types.HoverParams) -> types.Hover | None:
        uri = params.text_document.uri
        rules = dict.fromkeys(finding.rule for finding in server.at(uri, params.position))
        text = server.document(uri).source
        for ignore in read_ignores(text):
            if ignore.line == params.position.line + 1:
                rules |= dict.fromkeys(name for name in ignore.rules)
        pages = [rule_page(rule) for rule in rules if is_rule(rule)]
        if not pages:
            return None
        return types.Hover(types.MarkupContent(types.MarkupKind.Markdown, "\n\n---\n\n".join(pages)))

    @server.feature(
        types.TEXT_DOCUMENT_CODE_ACTION, types.CodeActionOptions(code_action_kinds=[types.CodeActionKind.QuickFix])
    )
    def code_actions(params: types.CodeActionParams) -> list[types.CodeAction]:
        document = server.document(params.text_document.uri)
        return [
            action
            for shown in params.context.diagnostics
            if shown.source == SOURCE and isinstance(shown.code, str)
            for action in suppressions(document, shown)
        ]

    return server


def is_rule(name: str) -> bool:
    """Whether a rule has a page."""
    try:
        page(name)
    except CapturelintError:
        return False
    return True


def suppressions(document: TextDocument, shown: types.Diagnostic) -> Iterator[types.CodeAction]:
    """The ways to suppress a diagnostic, each with its reason."""
    rule = str(shown.code)
    for reason in (*REASONS, OWN):
        edit = suppression(document.source, shown.range.start.line + 1, rule, reason)
        if edit is None or rule == "unused-ignore":
            return
        units = document.position_codec.position_to_client_units(
            document.lines, types.Position(edit.line - 1, edit.column - 1)
        )
        yield types.CodeAction(
            title=f"Suppress {rule}: {reason}" if reason else f"Suppress {rule}, the reason is yours to write",
            kind=types.CodeActionKind.QuickFix,
            diagnostics=[shown],
            edit=types.WorkspaceEdit(changes={document.uri: [types.TextEdit(types.Range(units, units), edit.text)]}),
        )


def main() -> None:
    """Serve one editor over standard input and output."""
    new_server().start_io()

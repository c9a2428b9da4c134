"""Findings -> changed source text, for the hazards whose cure is a rewriting of one expression.

The only user of libcst, imported when a fix is asked for: whitespace and comments survive. A safe fix computes the same
values; an unsafe one relies on something that the code does not show (that two tensors have one shape) and is made only
when asked for by name.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from capturelint.finding import Finding

if TYPE_CHECKING:
    import libcst as cst

Range: TypeAlias = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class Fix:
    """One cure: the rule, what it does in a few words, whether it keeps every value, and the rewriting.

    ``rewrite`` gets the node that a finding is about and returns the new one, or ``None`` where it does not apply.
    """

    rule: str
    does: str
    safe: bool
    rewrite: Callable[[cst.CSTNode], cst.CSTNode | None]


@dataclass(frozen=True, slots=True)
class Fixed:
    """A file's new text and the findings that it answers."""

    text: str
    answered: tuple[Finding, ...]


def fix_text(text: str, findings: Iterable[Finding], unsafe: bool = False) -> Fixed:
    """Apply every fix that fits a finding of this file. Suppressed findings are left alone."""
    import libcst as cst
    from libcst.metadata import MetadataWrapper, PositionProvider

    wanted = {
        range_of(finding): finding for finding in findings if not finding.suppressed and finding.place is not None
    }
    if not wanted:
        return Fixed(text, ())
    wrapper = MetadataWrapper(cst.parse_module(text), unsafe_skip_copy=True)
    targets: dict[cst.CSTNode, Finding] = {}
    for node, position in wrapper.resolve(PositionProvider).items():
        where = (position.start.line, position.start.column, position.end.line, position.end.column)
        finding = wanted.get(where)
        if finding is not None and any(applies(fix, finding, node, unsafe) for fix in fixes()):
            targets.setdefault(node, finding)
    changed = wrapper.module.visit(replacer(targets, unsafe))
    assert isinstance(changed, cst.Module)
    return Fixed(changed.code, tuple(dict.fromkeys(targets.values())))


def replacer(targets: Mapping[cst.CSTNode, Finding], unsafe: bool) -> cst.CSTTransformer:
    """A libcst transformer that rewrites the chosen nodes."""
    import libcst as cst

    class Replacer(cst.CSTTransformer):
        """Rewrites each chosen node once its children are done."""

        def on_leave(self, original_node: cst.CSTNodeT, updated_node: cst.CSTNodeT) -> cst.CSTNode:  # type: ignore[override]
            """The new node."""
            finding = targets.get(original_node)
            if finding is None:
                return updated_node
            news = (fix.rewrite(updated_node) for fix in fixes() if fits(fix, finding, unsafe))
            return next((new for new in news if new is not None), updated_node)

    return Replacer()


def fits(fix: Fix, finding: Finding, unsafe: bool) -> bool:
    """Whether a fix is for a finding's rule and may be made."""
    return fix.rule == finding.rule and (fix.safe or unsafe)


def applies(fix: Fix, finding: Finding, node: cst.CSTNode, unsafe: bool) -> bool:
    """Whether a fix changes the node that a finding is about."""
    return fits(fix, finding, unsafe) and fix.rewrite(node) is not None


def range_of(finding: Finding) -> Range:
    """A finding's place as libcst counts: lines from 1, columns from 0."""
    place = finding.place
    assert place is not None
    return (place.line, place.column - 1, place.end_line, place.end_column - 1)


def unified_diff(path: str, old: str, new: str) -> str:
    """The change as a patch."""
    lines = difflib.unified_diff(old.splitlines(True), new.splitlines(True), path, path)
    return "".join(line if line.endswith("\n") else line + "\n\\ No newline at end of file\n" for line in lines)


# -------------------------------------------------------------------- the rewritings


def fixes() -> tuple[Fix, ...]:
    """Every fix, the first that applies wins."""
    return (
        Fix("upload", "fill on the device instead of uploading a number", True, fill_on_device),
        Fix("upload", "assign to a slice of one, which is a fill kernel", True, assign_to_slice),
        Fix("stale-output", "keep a clone", True, keep_clone),
        Fix("state-rebind", "write into the tensor that is there", False, copy_into),
        Fix("input-rebind", "write into the tensor that is there", False, copy_into),
    )


def fill_on_device(node: cst.CSTNode) -> cst.CSTNode | None:
    """``torch.tensor(1.0, device=d)`` -> ``torch.full((), 1.0, device=d)``."""
    import libcst as cst
    import libcst.matchers as m

    number = m.OneOf(m.Integer(), m.Float(), m.UnaryOperation(expression=m.OneOf(m.Integer(), m.Float())))
    infinite = m.Call(func=m.Name("float"), args=[m.Arg(m.SimpleString())])
    call = m.Call(
        func=m.Attribute(value=m.Name("torch"), attr=m.OneOf(m.Name("tensor"), m.Name("as_tensor"))),
        args=[m.Arg(value=m.OneOf(number, infinite), keyword=None), m.AtLeastN(m.Arg(keyword=m.Name()), n=1)],
    )
    if not isinstance(node, cst.Call) or not m.matches(node, call):
        return None
    comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    shape = cst.Arg(cst.Tuple([]), comma=comma)
    return node.with_changes(func=cst.Attribute(cst.Name("torch"), cst.Name("full")), args=[shape, *node.args])


def assign_to_slice(node: cst.CSTNode) -> cst.CSTNode | None:
    """The target ``v[0]`` -> ``v[0:1]``; ``v[i, j]`` -> ``v[i, j : j + 1]``."""
    import libcst as cst

    if not isinstance(node, cst.Subscript):
        return None
    last = node.slice[-1]
    if not isinstance(last.slice, cst.Index) or last.slice.star is not None:
        return None
    bounds = one_element(last.slice.value)
    return node.with_changes(slice=[*node.slice[:-1], last.with_changes(slice=bounds)]) if bounds is not None else None


def one_element(index: cst.BaseExpression) -> cst.Slice | None:
    """The slice that holds one item: ``0`` -> ``0:1``, ``-1`` -> ``-1:``, ``i`` -> ``i : i + 1``."""
    import libcst as cst

    match index:
        case cst.Integer():
            return cst.Slice(index, cst.Integer(str(index.evaluated_value + 1)))
        case cst.UnaryOperation(operator=cst.Minus(), expression=cst.Integer(value="1")):
            return cst.Slice(index, None)
        case cst.Name():
            space = cst.SimpleWhitespace(" ")
            upper = cst.BinaryOperation(index, cst.Add(), cst.Integer("1"))
            return cst.Slice(index, upper, first_colon=cst.Colon(space, space))
        case _:
            return None


def keep_clone(node: cst.CSTNode) -> cst.CSTNode | None:
    """``outputs.append(x)`` -> ``outputs.append(x.clone())``."""
    import libcst as cst

    match node:
        case cst.Call(func=cst.Attribute(attr=cst.Name(value="append")), args=[argument]):
            value = argument.value
            plain = isinstance(value, (cst.Name, cst.Attribute, cst.Call, cst.Subscript))
            held = value if plain else value.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
            clone = cst.Call(cst.Attribute(held, cst.Name("clone")))
            return node.with_changes(args=[argument.with_changes(value=clone)])
        case _:
            return None


def copy_into(node: cst.CSTNode) -> cst.CSTNode | None:
    """``self.state = new`` -> ``self.state.copy_(new)``."""
    import libcst as cst

    match node:
        case cst.Assign(targets=[cst.AssignTarget(target=cst.Attribute() | cst.Subscript() as target)], value=value):
            return cst.Expr(cst.Call(cst.Attribute(target, cst.Name("copy_")), [cst.Arg(value)]))
        case _:
            return None

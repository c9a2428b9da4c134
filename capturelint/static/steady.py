"""What is so in every steady decode step: one token a row, a past, no images, containers that are long enough.

A condition that only the first step, a prompt or a larger batch than any before can change is settled here, by what it
asks and by the names that models give lengths. Nothing is settled about a number that changes at every step but whether
it is zero.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator

from capturelint.arguments import CACHES, COUNTERS, MASKS, TOKENS
from capturelint.static.values import (
    NONE,
    UNKNOWN,
    Const,
    Number,
    Scope,
    Union,
    Unknown,
    Value,
    constant,
    options,
    varies_of,
)
from capturelint.vocabulary import Varies

PREFILL = re.compile(r"_*(is_|in_)?(all_)?(prefill|prompt)(_(stage|mode|phase|run))?\Z")
"""Flags that say that a prompt is processed."""
PREFILLS = re.compile(r"num_\w*(prefill|prompt)\w*\Z|\w*(prefill|prompt)_\w*count\Z")
"""Names of how many rows are prompts."""
DECODE = frozenset(["is_decode", "is_decoding", "decoding", "is_decode_only", "has_previous_state"])
"""Flags that say that one is not."""
ROWS = frozenset(
    f"{what}_{how}" for what in ("seq", "q", "q_seq", "query", "tgt", "target") for how in ("len", "length")
) | {"seqlen", "sequence_length", "input_length", "num_new_tokens", "num_input_tokens"}
"""Names of the number of tokens that a step is given for each row."""
WIDE = frozenset([*TOKENS, "input_shape", "inputs_embeds", "hidden_states", "hidden", "h", "hidden_state"])
"""What has a token in its second dimension, or the shape of that."""
MANY = frozenset(["hidden_states", "inputs_embeds", "encoder_hidden_states", "freqs_cis", "cos", "sin", "causal_mask"])
PAST = (COUNTERS - {"step", "cur_step", "seq_len", "seqlen"}) | {"past_seen_tokens", "past_kv_len", "past_kv_length"}
"""Names of how much came before."""
OFFSET = re.compile(r"_*((past|cache|kv|seq|rope|pos|position|start|token)_?)+(len_?|length_?)?offset\Z")
"""More of these: where in the row a step's tokens begin."""
CARRIED = frozenset([*CACHES, "cache_params", "inference_params", "layer_past", "past"])
"""What earlier steps filled."""
PROMPT = re.compile(r"(pixel|image|video|media)s?(_(?!.*(token|ids|idx)s?\Z)\w+)?\Z")
"""Arguments that come with a prompt."""


def is_filled(node: ast.expr, value: Value, scope: Scope) -> bool:
    """True for a cache, and for what was taken out of one, where it may be there: earlier steps have filled it."""
    if not isinstance(node, ast.Name) or not (node.id in CARRIED or node.id in scope.carried):
        return False
    return value != NONE and any(option in (NONE, UNKNOWN) for option in options(value))


def base_name(node: ast.expr) -> str:
    """``cache`` of ``cache.get(layer)[0].state``; nothing where an expression does not start with a name."""
    while isinstance(node, (ast.Attribute, ast.Subscript, ast.Call)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def has_many(node: ast.expr) -> bool:
    """A name that models give tensors of many items: masks, hidden states, tables of angles."""
    return isinstance(node, ast.Name) and (node.id in MANY or node.id in MASKS)


def comes_with_prompt(name: str) -> bool:
    """Whether an argument is given with a prompt only: pictures, and what is said of them."""
    return PROMPT.match(name) is not None


def settled(compare: Callable[..., object], test: ast.Compare, left: Value, right: Value) -> bool | None:
    """The answer of a comparison in a decode step, where every such step gives the same."""
    if len(test.ops) != 1:
        return None
    first, second, mirrored = test.left, test.comparators[0], isinstance(left, Const)
    if mirrored:
        first, second, left, right = second, first, right, left
    limit = constant(right)
    if isinstance(limit, bool) or not isinstance(limit, int) or not is_open(left):
        return None
    one = is_row(first) and varies_of(left) is not Varies.PER_STEP
    none = isinstance(first, (ast.Name, ast.Attribute)) and PREFILLS.match(ast.unparse(first).rpartition(".")[2])
    if not one and not none and not (limit == 0 and is_past(first)):
        return None
    size = 0 if none else 1
    return bool(compare(limit, size) if mirrored else compare(size, limit))


def is_open(value: Value) -> bool:
    """A host number that is not known, or anything."""
    if isinstance(value, Union):
        return all(isinstance(option, (Number, Unknown, Const)) for option in value.options)
    return isinstance(value, (Number, Unknown))


def is_row(node: ast.expr) -> bool:
    """``seq_len``, ``input_ids.shape[1]``, ``hidden_states.size(1)``: tokens of a step, for each row."""
    match node:
        case ast.Name(id=name):
            return name in ROWS
        case ast.Subscript(value=ast.Attribute(value=ast.Name(id=name), attr="shape"), slice=ast.Constant(value=1)):
            return name in WIDE
        case ast.Subscript(value=ast.Name(id="input_shape"), slice=at):
            return ast.unparse(at) in ("1", "-1")
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="size"), args=[ast.Constant(value=1)]):
            return name in WIDE
        case _:
            return False


def is_past(node: ast.expr) -> bool:
    """``past_length``, ``self.cache_len``, ``cache.get_seq_length()``: how much came before."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name in PAST or OFFSET.match(name) is not None
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="get_seq_length")):
            return name in CACHES
        case _:
            return False


def flag(node: ast.expr) -> bool | None:
    """What a flag says in a decode step that tells prompts from decode steps: a name, an attribute, a method."""
    match node:
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            answer = flag(operand)
            return None if answer is None else not answer
        case ast.Call(func=ast.Attribute(attr=name)) | ast.Attribute(attr=name) | ast.Name(id=name):
            return True if name in DECODE else False if PREFILL.match(name) else None
        case _:
            return None


def settled_by_warm_up(
    test: ast.expr, body: list[ast.stmt], orelse: list[ast.stmt], rest: list[ast.stmt]
) -> bool | None:
    """What a test says that asks for what warm-up has built; ``None`` where it asks another thing."""
    answer = long_enough(test, body, orelse)
    return built(test, body, orelse, rest) if answer is None else answer


def built(test: ast.expr, body: list[ast.stmt], orelse: list[ast.stmt], rest: list[ast.stmt]) -> bool | None:
    """Whether what is built on first use is there, where one side of a condition on it builds it: warm-up has.

    ``if self.x is None or key != self.key: self.x = build()``, ``if key in self.x: return self.x[key]`` before it is
    stored. What is computed from itself is not built once: it moves.
    """
    held, there = set(held_in(test)), asks_presence(test)
    if there is None:
        return None
    if is_kept(test, orelse if there else body):
        return there
    if not held:
        return None
    if held & set(built_in(orelse if there else body)):
        return there
    returns = body[-1] if body and isinstance(body[-1], ast.Return) else None
    given = set(held_in(returns.value)) if returns is not None and returns.value is not None else set()
    return True if there and held & given & set(built_in(rest)) else None


def is_kept(test: ast.expr, side: list[ast.stmt]) -> bool:
    """Whether a side of ``x is None`` keeps the ``x`` that it builds: ``table[key] = x``, ``self.x = x``."""
    names = {
        part.left.id for part in ast.walk(test) if isinstance(part, ast.Compare) and isinstance(part.left, ast.Name)
    }
    return any(
        isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Name)
        and node.value.id in names
        and any(isinstance(target, (ast.Attribute, ast.Subscript)) for target in node.targets)
        for node in nodes_of(side)
    )


def asks_presence(test: ast.expr) -> bool | None:
    """Whether a test asks if something is there, or the same; ``False`` if it asks whether it is missing, or another.

    ``x is not None and key == x.key`` and ``x is None or key != x.key``; ``None`` for a test of another kind.
    """
    match test:
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            answer = asks_presence(operand)
            return None if answer is None else not answer
        case ast.BoolOp(op=op, values=values):
            wanted = isinstance(op, ast.And)
            about = [asks_presence(value) for value in values if any(held_in(value))]
            return wanted if about and all(answer is wanted for answer in about) else None
        case ast.Compare(ops=[ast.Is() | ast.IsNot() as op], comparators=[ast.Constant(value=None)]):
            return isinstance(op, ast.IsNot)
        case ast.Compare(ops=[ast.Eq() | ast.In()]):
            return True
        case ast.Compare(ops=[ast.NotEq() | ast.NotIn()]):
            return False
        case _:
            return None


def held_in(node: ast.expr) -> Iterator[str]:
    """The attributes that an expression reads, ``self.x`` of ``self.x[0].shape``: those of plain names."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Attribute) and isinstance(inner.value, ast.Name):
            yield f"{inner.value.id}.{inner.attr}"


def built_in(statements: list[ast.stmt]) -> Iterator[str]:
    """The attributes that statements store, or store an item of, computed from other things than themselves."""
    for node in nodes_of(statements):
        if not isinstance(node, ast.Assign):
            continue
        sources = set(held_in(node.value))
        for target in node.targets:
            for part in target.elts if isinstance(target, ast.Tuple) else [target]:
                place = part.value if isinstance(part, ast.Subscript) else part
                if isinstance(place, ast.Attribute) and not sources.intersection(held_in(place)):
                    yield from held_in(place)


def is_test(node: ast.expr) -> bool:
    """An expression that is a condition on names: a comparison, ``isinstance``, and what is made of them."""
    match node:
        case ast.Compare():
            return True
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return is_test(operand)
        case ast.BoolOp(values=values):
            return all(map(is_test, values))
        case ast.Call(func=ast.Name(id="isinstance")):
            return True
        case _:
            return False


def long_enough(test: ast.expr, body: list[ast.stmt], orelse: list[ast.stmt]) -> bool | None:
    """What a test says that asks whether a container, or a table, is long enough; ``None`` where it asks another thing.

    Warm-up has made it so, if one side of the condition grows it or the other one uses the position that was asked for.
    """
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        answer = long_enough(test.operand, orelse, body)
        return None if answer is None else not answer
    if not isinstance(test, ast.Compare) or len(test.ops) != 1:
        return None
    left, right = test.left, test.comparators[0]
    held, short = sized(left), isinstance(test.ops[0], (ast.Lt, ast.LtE))
    needed = right
    if held is None:
        held, needed, short = sized(right), left, isinstance(test.ops[0], (ast.Gt, ast.GtE))
    if held is None or not isinstance(test.ops[0], (ast.Lt, ast.LtE, ast.Gt, ast.GtE)):
        return None
    inside, outside = (orelse, body) if short else (body, orelse)
    return not short if grows(outside, held, needed) or uses(inside, needed) else None


def sized(node: ast.expr) -> str | None:
    """``self.x`` of ``len(self.x)``, ``self.x.size(0)``, ``self.x.shape[0]``: what outlives a step, and has a size."""
    match node:
        case ast.Call(func=ast.Name(id="len"), args=[held]):
            return ast.unparse(held) if isinstance(held, ast.Attribute) or is_self(held) else None
        case ast.Call(func=ast.Attribute(value=ast.Attribute() as held, attr="size")):
            return ast.unparse(held)
        case ast.Subscript(value=ast.Attribute(value=ast.Attribute() as held, attr="shape")):
            return ast.unparse(held)
        case _:
            return None


def is_self(node: ast.expr) -> bool:
    """``self``."""
    return isinstance(node, ast.Name) and node.id == "self"


def grows(side: list[ast.stmt], held: str, needed: ast.expr) -> bool:
    """Whether statements put more into a container, replace it, or have its owner do so for the length needed."""
    owner, names = held.rpartition(".")[0] or held, set(names_in(needed))
    for node in nodes_of(side):
        match node:
            case ast.Attribute(ctx=ast.Store()) if ast.unparse(node) == held:
                return True
            case ast.Call(func=ast.Attribute(value=target)) if ast.unparse(target) == held:
                return True
            case ast.Call(func=ast.Attribute(value=target)) if ast.unparse(target) == owner:
                given = [name for argument in node.args for name in names_in(argument)]
                if names & set(given):
                    return True
            case _:
                pass
    return False


def uses(side: list[ast.stmt], needed: ast.expr) -> bool:
    """Whether statements look up the very position that was asked for."""
    wanted = ast.dump(needed)
    return any(isinstance(node, ast.Subscript) and ast.dump(node.slice) == wanted for node in nodes_of(side))


def nodes_of(side: list[ast.stmt]) -> Iterator[ast.AST]:
    """Every node of some statements."""
    for statement in side:
        yield from ast.walk(statement)


def names_in(node: ast.AST) -> Iterator[str]:
    """The names that a piece of code reads or binds."""
    return (inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name))

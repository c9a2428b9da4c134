"""``rules/aten.yaml`` names conditions, operators and arguments that exist."""

from __future__ import annotations

import pytest
import torch

from capturelint.catalog import load_aten
from capturelint.emulator.refusal import CONDITIONS, KINDS

ROWS = load_aten().refusals


def schemas(name):
    """The schemas of an operator, of all its overloads or of the one named."""
    base, _, overload = name.partition(".")
    packet = getattr(torch.ops.aten, base.removeprefix("aten::"))
    names = [overload] if overload else packet.overloads()
    return [getattr(packet, known)._schema for known in names]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.operators[0])
def test_a_row_names_what_exists(row):
    assert row.when in CONDITIONS
    assert row.effect in KINDS
    assert row.why
    assert row.source
    found = [schema for name in row.operators for schema in schemas(name)]
    assert found
    if row.argument is not None:
        assert {row.argument} <= {argument.name for schema in found for argument in schema.arguments}


def test_host_arguments_exist():
    for name, arguments in load_aten().host_arguments.items():
        assert arguments <= {argument.name for schema in schemas(name) for argument in schema.arguments}, name


def test_every_condition_is_used():
    assert CONDITIONS.keys() == {row.when for row in ROWS}

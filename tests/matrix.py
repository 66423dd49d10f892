"""Tests of many combinations: ``make test`` runs some of them, ``make test-all`` all."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def matrix(values: Iterable[Any], few: Collection[Any]) -> list[Any]:
    """The values for ``pytest.mark.parametrize``, of which all but a few are run by ``make test-all`` only."""
    return [value if value in few else pytest.param(value, marks=pytest.mark.matrix) for value in values]


def chosen(request: pytest.FixtureRequest, argument: str) -> list[Any]:
    """The values of a parameter in the tests of this module that are run, each once: those that need a training."""
    items = [item for item in request.session.items if isinstance(item, pytest.Function)]
    params = [item.callspec.params for item in items if item.module is request.module and hasattr(item, "callspec")]
    values: list[Any] = []
    values.extend(own[argument] for own in params if argument in own and own[argument] not in values)
    return values

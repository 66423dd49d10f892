"""How many examples Hypothesis tries where one takes long."""

from __future__ import annotations

from hypothesis import settings


def examples(few: int, thorough: int) -> int:
    """``thorough`` under the profile of that name, which ``make test-all`` chooses, and ``few`` otherwise."""
    return thorough if settings.get_current_profile_name() == "thorough" else few

"""What tables print."""

from __future__ import annotations

import pytest

from heterps.report.tables import format_change


@pytest.mark.parametrize(
    ("share", "text"), [(-1e-9, "+0.00%"), (0.0, "+0.00%"), (-0.0025, "-0.25%"), (1.05, "+105.00%")]
)
def test_a_change_has_a_sign_but_no_negative_zero(share: float, text: str) -> None:
    assert format_change(share) == text

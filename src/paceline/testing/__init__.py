"""The conformance suite, for strategies of this package and of any other. It needs pytest: `paceline[testing]`.

    from paceline.testing import StrategySuite

    class TestMine(StrategySuite):
        spec = "mine:k=2"

pytest collects the class. See `StrategySuite` for its checks, and for the settings of an asynchronous strategy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline.testing.suite import StrategySuite

__all__ = ["StrategySuite"]


def __getattr__(name: str) -> Any:
    """Import pytest only when needed: the ranks of a test load the tasks of this package, and must start quickly."""
    if name not in __all__:
        raise AttributeError(f"module 'paceline.testing' has no attribute {name!r}")
    try:
        import pytest
    except ImportError as error:
        raise ImportError("paceline.testing needs pytest: pip install 'paceline[testing]'") from error
    pytest.register_assert_rewrite("paceline.testing.checks")  # failing checks show their values
    from paceline.testing.suite import StrategySuite

    return StrategySuite

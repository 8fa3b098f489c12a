"""Valid and invalid `[budgets.NAME]` tables."""

from pathlib import Path

import pytest

from tests.config.test_loader import MODEL, complaint
from tidegate.config import BudgetSettings, read

HOME = Path("/srv/gate")


def test_a_budget_is_read() -> None:
    """X22: in tokens, in money or in both, for everybody or for some."""
    config = read(
        """
        [agents.main]
        [budgets.people]
        per = "principal"
        each = "day"
        tokens = 1_000_000
        money = 2
        only = ["anna", "Bert & Co"]
        [budgets.turn]
        per = "turn"
        money = 0.05
        [budgets.main]
        per = "agent"
        each = "total"
        tokens = 1
        only = ["main"]
        """,
        HOME,
    )
    assert config.budgets["people"] == BudgetSettings(
        per="principal", each="day", tokens=1_000_000, money=2.0, only=("anna", "Bert & Co")
    )
    assert config.budgets["turn"] == BudgetSettings(per="turn", money=0.05)
    assert config.budgets["main"].only == ("main",)
    assert read("", HOME).budgets == {}


@pytest.mark.parametrize(
    ("lines", "fault"),
    [
        ('per = "gateway"\neach = "day"', "requires a limit, the key 'tokens' or 'money'"),
        ('each = "day"\ntokens = 1', "requires the key 'per', one of \"gateway\""),
        ('per = "everybody"\neach = "day"\ntokens = 1', 'per must be one of "gateway"'),
        ('per = "gateway"\ntokens = 1', "requires the key 'each' with per = \"gateway\""),
        ('per = "gateway"\neach = "week"\ntokens = 1', 'each must be one of "hour"'),
        ('per = "turn"\neach = "day"\ntokens = 1', "which does not apply to a budget per turn; remove it"),
        ('per = "gateway"\neach = "day"\ntokens = 0', "tokens must be a whole number of at least 1"),
        ('per = "gateway"\neach = "day"\nmoney = 0', "money must be dollars, a number above 0"),
        ('per = "gateway"\neach = "day"\nmoney = nan', "money must be dollars"),
        ('per = "gateway"\neach = "day"\nmoney = inf', "money must be at most 1000000000"),
        ('per = "gateway"\neach = "day"\nmoney = "5 $"', "money must be dollars"),
        ('per = "session"\neach = "day"\ntokens = 1\nonly = ["a"]', "'only', which requires per = \"principal\""),
        ('per = "agent"\neach = "day"\ntokens = 1\nonly = ["mian"]', "there is no [agents.mian]; did you mean 'main'?"),
        ('per = "job"\neach = "day"\ntokens = 1\nonly = "news"', "only must be a list of lines of text"),
        ('per = "gateway"\neach = "day"\ntoken = 1', "has no key 'token'; did you mean 'tokens'?"),
    ],
)
def test_an_invalid_budget_is_refused_with_the_valid_values(lines: str, fault: str) -> None:
    """X22: a budget that limits nothing would be worse than none."""
    said = complaint(MODEL + "[agents.main]\n[budgets.b]\n" + lines)
    assert said.startswith("tidegate.toml: ") and "budgets.b" in said and fault in said

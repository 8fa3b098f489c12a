"""Whether budgets of money can be kept: only where every model has a known price.

Guarantee: a start with a budget of money and a model that could be asked at an unknown price is refused, with what to
set. Nothing is read but the catalogue, and that only where there is such a budget.
"""

from collections.abc import Iterator

from tidegate.config import FILE_NAME, Config


def unknown(config: Config) -> Iterator[str]:
    budget = next((name for name, settings in config.budgets.items() if settings.money is not None), None)
    if budget is None:
        return
    from tidegate.models import Catalog  # few have such a budget

    catalogue = Catalog.shipped()
    for name, model in config.models.items():
        if catalogue.facts_of(model).prices is None:
            yield (
                f"{FILE_NAME}: [models.{name}] has no known price, and [budgets.{budget}] is one of money: set its "
                "price_input and price_output in dollars for a million tokens (0 for a local model)."
            )

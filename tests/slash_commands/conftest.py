from tests.fixtures import home, model

__all__ = ["home", "model"]

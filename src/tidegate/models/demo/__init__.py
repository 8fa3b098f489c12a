"""The built-in demo model. `script.py` chooses the replies, and `model.py` streams them."""

"""The built-in demo model: `model.py` streams the replies that `script.py` chooses."""

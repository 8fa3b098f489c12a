"""OpenAI's two formats, and what is compatible with the first: chat completions and responses.

Each is a format (`chat.py`, `responses.py`), what goes out (`…_wire.py`) and what comes in (`…_answer.py`).
"""

"""Anthropic's Messages.

The format is `messages.py`, what goes out `wire.py` and `call.py`, what comes in `answer.py`.
"""

"""Anthropic's Messages API.

`messages.py` and `messages_parameters.py` build requests; `messages_answer.py` parses answers.
"""

"""Anthropic's Messages API.

`messages.py` and `messages_parameters.py` make requests; `messages_answer.py` reads answers.
"""

"""Provider formats and what they have in common.

`format.py` defines the interface of a format and explains how to add one. Each API has a module for its requests and
one for its answers: `openai/chat.py` and `chat_answer.py`, `openai/responses.py` and `responses_answer.py`,
`anthropic/messages.py` and `messages_answer.py`.
"""

"""Provider formats and the parts that they share.

`format.py` is the interface of a format and says how to add one. Each API has a module for its requests and a module
for its answers: `openai/chat.py` and `chat_answer.py`, `openai/responses.py` and `responses_answer.py`,
`anthropic/messages.py` and `messages_answer.py`.
"""

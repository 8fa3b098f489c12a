"""OpenAI's two APIs: chat completions, which many other endpoints implement as well, and Responses.

`chat.py` and `responses.py` build requests; `chat_answer.py` and `responses_answer.py` parse answers. `reasoning.py`
collects the reasoning fields that compatible endpoints add to chat completions.
"""

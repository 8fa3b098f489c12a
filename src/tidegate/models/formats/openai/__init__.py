"""OpenAI's two APIs: chat completions, which many other endpoints implement too, and Responses.

`chat.py` and `responses.py` make requests; `chat_answer.py` and `responses_answer.py` read answers. `reasoning.py`
stores the reasoning fields that compatible endpoints add to chat completions.
"""

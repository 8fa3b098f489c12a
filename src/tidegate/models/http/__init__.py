"""Models behind HTTP endpoints, for every wire format.

`endpoint.py` makes the attempts of a call, `http_model.py` is a chat model, `retry.py` contains the retry policy,
`keyring.py` and `cooldown.py` rotate keys, and `endpoint_failures.py` and `error_body.py` map failures. Connections are
made by `tidegate.http_client`.
"""

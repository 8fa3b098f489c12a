"""Models behind HTTP endpoints, for every wire format.

`http_model.py` sends a request and reads the answer, `retry.py` is the retry policy, `keyring.py` and `cooldown.py`
rotate keys, and `endpoint_failures.py` and `error_body.py` map failures. Connections are made by
`tidegate.http_client`.
"""

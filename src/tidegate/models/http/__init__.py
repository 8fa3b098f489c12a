"""Models behind HTTP endpoints, for every wire format.

`http_model.py` sends requests and reads answers, `retry.py` contains the retry policy, `keyring.py` and `cooldown.py`
rotate keys, and `endpoint_failures.py` and `error_body.py` map failures. Connections are made by
`tidegate.http_client`.
"""

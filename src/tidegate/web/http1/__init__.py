"""The HTTP/1.1 server: uvicorn's protocol with Tidegate's limits and error responses.

All code that relies on uvicorn's private attributes and methods is in this package. `tests/web/test_uvicorn_canary.py`
lists them and detects changes in uvicorn.
"""

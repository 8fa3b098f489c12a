"""Models behind HTTP endpoints: the client, retries, keys and failures, whichever wire format an endpoint speaks."""

"""The HTTP/1.1 server: uvicorn's protocol with our limits and errors. Everything that relies on uvicorn is here."""

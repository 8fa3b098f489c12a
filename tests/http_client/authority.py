"""A certificate authority of the tests' own, made with openssl."""

import shutil
import ssl
import subprocess
from pathlib import Path

import pytest

WAIT = 60
NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to make certificates with")


def openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True, timeout=WAIT)


class Authority:
    """Makes certificates in its own folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        self.certificate = folder / "ca.pem"
        use = ("-addext", "keyUsage=critical,keyCertSign,cRLSign")
        out = ("-keyout", folder / "ca.key", "-out", self.certificate)
        openssl("req", "-x509", *NEW_KEY, "-subj", "/CN=Tests", "-days", "2", *use, *out)

    def context(self, name: str) -> ssl.SSLContext:
        """What a server needs that is known under `name`, e.g. `IP:127.0.0.1`."""
        key, asked, given = (self.folder / f"server.{end}" for end in ("key", "csr", "pem"))
        names = ("-addext", f"subjectAltName={name}")
        openssl("req", *NEW_KEY, "-subj", "/CN=server", *names, "-keyout", key, "-out", asked)
        by = ("-CA", self.certificate, "-CAkey", self.folder / "ca.key", "-CAcreateserial")
        openssl("x509", "-req", "-in", asked, *by, "-copy_extensions", "copy", "-days", "2", "-out", given)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(given, key)
        return context

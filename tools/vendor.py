"""Gets the chat page's libraries from the npm registry, by name and version.

`python tools/vendor.py` writes the files that `packages.toml` in the folder of vendored files lists, their checksums
(`SHA256SUMS`) and `THIRD_PARTY_NOTICES.md`, and removes all others. It needs npm. A test compares the files with the
checksums.
"""

import hashlib
import io
import re
import subprocess
import tarfile
import tempfile
import tomllib
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "src/tidegate/web/static/vendor"
MANIFEST, SUMS, NOTICES = "packages.toml", "SHA256SUMS", "THIRD_PARTY_NOTICES.md"
NPM_SECONDS = 120


def package_files(name: str, version: str) -> dict[str, bytes]:
    """The files of a package, by their paths in it."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["npm", "pack", "--silent", "--pack-destination", folder, f"{name}@{version}"]
        subprocess.run(command, check=True, timeout=NPM_SECONDS, stdout=subprocess.DEVNULL)
        (archive,) = Path(folder).glob("*.tgz")
        content = archive.read_bytes()
    files = {}
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        for member in tar.getmembers():
            file = tar.extractfile(member)
            if file is not None:
                files[member.name.partition("/")[2]] = file.read()
    return files


def with_paths(source: bytes, imports: dict[str, str]) -> bytes:
    """A module with paths in place of bare module names, and without its reference to a source map."""
    text = source.decode()
    for module, path in imports.items():
        text = re.sub(rf"""(\bfrom\s*|\bimport\s*)(["']){re.escape(module)}\2""", rf"\1\2{path}\2", text)
    return re.sub(r"//# sourceMappingURL=\S*", "", text).encode()


def sums(folder: Path = FOLDER) -> str:
    """The checksums of all files of the folder, as `sha256sum` writes them."""
    files = sorted(path for path in folder.iterdir() if path.name != SUMS)
    return "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files)


def notices(packages: list[dict[str, Any]]) -> str:
    """A page that lists the packages with their licences."""
    lines = [
        "# Third-party notices\n",
        "The chat page contains files of these packages. It has no build step and requests nothing from other hosts,",
        "so they are kept here as their authors publish them on npm. In the files of Preact and its signals, the names",
        "of imported modules are replaced with paths. Generated from `packages.toml` by `tools/vendor.py`.\n",
        "| package | version | licence | files |",
        "|---|---|---|---|",
    ]
    for package in packages:
        files = ", ".join(f"`{name}`" for name in package["files"].values())
        lines.append(f"| {package['name']} | {package['version']} | {package['licence']} | {files} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    packages = tomllib.loads((FOLDER / MANIFEST).read_text())["package"]
    new = {NOTICES: notices(packages).encode()}
    for package in packages:
        files = package_files(package["name"], package["version"])
        imports = package.get("imports")
        for source, target in package["files"].items():
            is_changed = imports is not None and target.endswith(".js")
            new[target] = with_paths(files[source], imports) if is_changed else files[source]
    for path in FOLDER.iterdir():
        if path.name not in new and path.name != MANIFEST:
            path.unlink()
    for name, content in new.items():
        (FOLDER / name).write_bytes(content)
    (FOLDER / SUMS).write_text(sums())


if __name__ == "__main__":
    main()

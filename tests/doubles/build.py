"""Makes a folder that looks like Tr 2.3's: libtr.so (the double, compiled from libtr.c), ctpn.bin and crnn.bin.

    python tests/doubles/build.py FOLDER

Then OCRSVC_TR_HOME=FOLDER serves it; libtr.c says what it answers and which variables make it misbehave. Needs `cc`.
"""

from __future__ import annotations

import argparse
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("libtr.c")
CC = ("cc", "-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-pthread")


def build_home(folder: Path) -> None:
    """Write the three files into a folder, made if need be. Raises CalledProcessError with the compiler's words."""
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run([*CC, "-o", folder / "libtr.so", SOURCE, "-lm"], check=True)
    (folder / "ctpn.bin").write_bytes(b"CTPN double")
    (folder / "crnn.bin").write_bytes(b"CRNN double")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    build_home(parser.parse_args().folder)


if __name__ == "__main__":
    main()

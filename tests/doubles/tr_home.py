"""Makes a folder that looks like Tr 2.3's: libtr.so (the double, compiled from libtr.c), ctpn.bin and crnn.bin.

    python tests/doubles/tr_home.py FOLDER [--gpu]

Then OCRSVC_TR_HOME=FOLDER serves it; libtr.c says what it answers and which variables make it misbehave. With --gpu
it is the GPU build, and beside it lies a double of NVML (nvml.c), libnvidia-ml.so.1. Needs `cc`.
"""

from __future__ import annotations

import argparse
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("libtr.c")
NVML_SOURCE = Path(__file__).with_name("nvml.c")
NVML = "libnvidia-ml.so.1"
CC = ("cc", "-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-pthread")


def build_home(folder: Path, *, gpu: bool = False) -> None:
    """Write the three files into a folder, made if need be; with `gpu` the GPU build, and the double of NVML.

    Raises CalledProcessError with the compiler's words.
    """
    folder.mkdir(parents=True, exist_ok=True)
    flags = ("-DGPU_BUILD",) if gpu else ()
    subprocess.run([*CC, *flags, "-o", folder / "libtr.so", SOURCE, "-lm"], check=True)
    if gpu:
        subprocess.run([*CC, "-o", folder / NVML, NVML_SOURCE], check=True)
    (folder / "ctpn.bin").write_bytes(b"CTPN double")
    (folder / "crnn.bin").write_bytes(b"CRNN double")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gpu", action="store_true")
    args = parser.parse_args()
    build_home(args.folder, gpu=args.gpu)


if __name__ == "__main__":
    main()

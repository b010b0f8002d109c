"""Makes a folder like that of Tr 2.3: libtr.so (a double compiled from libtr.c), ctpn.bin and crnn.bin.

    python tests/doubles/tr_home.py FOLDER [--gpu]

OCRSVC_TR_HOME=FOLDER serves it. libtr.c documents its answers and the variables that make it misbehave. With --gpu,
libtr.so is the GPU build, and libnvidia-ml.so.1 (a double of NVML, compiled from nvml.c) is added. Needs `cc`.
"""

import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).with_name("libtr.c")
NVML_SOURCE = Path(__file__).with_name("nvml.c")
NVML = "libnvidia-ml.so.1"
CC = ("cc", "-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-pthread")


def build_home(folder: Path, *, gpu: bool = False) -> None:
    """Write the three files into a folder, created if missing; `gpu` selects the GPU build and adds the double of NVML.

    Raises CalledProcessError if the compiler fails.
    """
    folder.mkdir(parents=True, exist_ok=True)
    flags = ("-DGPU_BUILD",) if gpu else ()
    subprocess.run([*CC, *flags, "-o", folder / "libtr.so", SOURCE, "-lm"], check=True)
    if gpu:
        subprocess.run([*CC, "-o", folder / NVML, NVML_SOURCE], check=True)
    (folder / "ctpn.bin").write_bytes(b"CTPN double")
    (folder / "crnn.bin").write_bytes(b"CRNN double")


if __name__ == "__main__":
    build_home(Path(sys.argv[1]), gpu="--gpu" in sys.argv[2:])

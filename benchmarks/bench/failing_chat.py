"""A double of a remote model that fails or dies at random: `python -m bench.failing_chat PORT SEED`."""

import random
import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from chat_stand_in import chat_server

# How many of 1,000 calls get each answer of tests/data/chat_answers.yaml.
CHANCES = {"busy": 2, "loading": 2, "stall": 5, "cut": 20, "repeat": 20, "length": 20, "bad": 10, "error": 10, "die": 1}


def main() -> None:
    """Answer until the process is killed."""
    rng = random.Random(int(sys.argv[2]))

    def choose(_size: str) -> str:
        return rng.choices(["ok", *CHANCES], [1000 - sum(CHANCES.values()), *CHANCES.values()])[0]

    with chat_server(choose, int(sys.argv[1])):
        threading.Event().wait()


if __name__ == "__main__":
    main()

"""CPU time of choosing a model version for a request, and of following another worker's change.

    python benchmarks/models_routing.py [--models 5] [--versions 4] [--rounds 20000]

The models use the engine fake and are not loaded; every version is wanted and accepted. Requests are resolved by name,
version, label, share, language, and without any name, in turn, five times; the medians are printed. Then another store
moves a label, and the next request reads the whole repository.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from bench.machine import print_machine

from ocrsvc.models.model_control import CHECK_S, ModelControl
from ocrsvc.models.model_name import WantedModel
from ocrsvc.models.repository import ModelRepository
from ocrsvc.models.state import StateStore, Verdict
from ocrsvc.models.version_selection import VersionSelector
from ocrsvc.results import ReadOptions

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from models_support import make_fake

REPEATS: Final = 5
CASES: Final = {
    "no name": ReadOptions(),
    "model": ReadOptions(model="m1"),
    "model/version": ReadOptions(model="m1/2"),
    "model:label": ReadOptions(model="m1:stable"),
    "share": ReadOptions(model="m0"),
    "lang of the last model": ReadOptions(lang="ko"),
}


def make_repository(folder: Path, models: int, versions: int) -> StateStore:
    """Make models m0, m1 … with `versions` accepted versions each, the last for Korean; returns their state store."""
    store = StateStore(folder / "state")
    for model in range(models):
        for number in range(1, versions + 1):
            languages = ("ko",) if model == models - 1 else ("zh", "en")
            made = make_fake(folder / "models", number, f"m{model}", languages=languages)
            store.record_verdict(made.digest, Verdict(accepted=True))
    lines = ['[m0]\nversions = "all"\nlabels = {canary = 1}\nshares = {canary = 0.5}']
    lines += [f'[m{model}]\nversions = "all"\nlabels = {{stable = 1}}' for model in range(1, models)]
    (folder / "models" / "models.toml").write_text("\n".join(lines))
    return store


def cpu_us(call: Callable[[], object], rounds: int) -> float:
    """Mean CPU microseconds of one call."""
    began_s = time.process_time()
    for _ in range(rounds):
        call()
    return (time.process_time() - began_s) / rounds * 1e6


def main() -> None:
    """Run the benchmark and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=int, default=5)
    parser.add_argument("--versions", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=20_000)
    args = parser.parse_args()
    print_machine()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        store = make_repository(folder, args.models, args.versions)
        control = ModelControl(ModelRepository(folder / "models"), store)
        selector = VersionSelector(control, WantedModel("m1"))
        measured: dict[str, list[float]] = {name: [] for name in (*CASES, "check the state file")}
        for _ in range(REPEATS):
            for name, options in CASES.items():
                measured[name].append(cpu_us(lambda options=options: selector.select(options), args.rounds))  # type: ignore[misc]
            measured["check the state file"].append(cpu_us(control.latest, args.rounds))
        for name, times in measured.items():
            print(f"{name:24} {statistics.median(times):8.2f} µs")
        print(f"{'follow a change, on disk':24} {statistics.median(_follow(control.latest, store)):8.0f} µs")
        print(f"{'follow a change, request':24} {statistics.median(_follow(control.catalogue, store)):8.0f} µs")


def _follow(look: Callable[[], object], store: StateStore) -> list[float]:
    """CPU microseconds of the first call of `look` after each of 20 changes."""
    found = []
    for _ in range(20):
        store.record_verdict(f"{time.monotonic_ns():064}", Verdict(accepted=True))
        time.sleep(CHECK_S)
        found.append(cpu_us(look, 1))
    return found


main()

"""Five models in a worker with room for three: memory over time against the budget, hit ratio, load times.

    python benchmarks/models_memory.py [--isolation process] [--kind real] [--seconds 20] [--clients 20]

Fake versions allocate --model-mib; real ones are the built-in model under five names, run by the engine ppocr. Each
client sends pages one after the other and chooses a model at random for each, the first twice as often as the second,
three times as often as the third, and so on. Prints the models' memory (that of the service's processes, minus their
memory without models) over time, and its peak. Exit code 1 if it exceeded the budget by more than 5 %, or on any wrong
answer.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.machine import print_machine
from bench.pages import scan, tiny_png
from bench.processes import family_of
from bench.results import write_result
from bench.service import ROOT, Service, ask, started

MODELS = 5
ROOM = 3
FAKE, REAL = "fake", "real"
SAMPLE_S = 0.1
ANSWER_S = 600.0
_TOLERANCE = 1.05
_MIB = 1 << 20


@dataclass
class Answers:
    """Seconds of each answer, and counts of outcomes."""

    seconds: list[float] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)


def make_repository(folder: Path, kind: str, model_bytes: int) -> dict[str, str]:
    """Make five models with one accepted version each; returns the settings of a service that uses them."""
    sys.path.insert(0, str(ROOT))
    from ocrsvc.engines.model.files import write_manifest
    from ocrsvc.models.repository import ModelRepository
    from ocrsvc.models.state import StateStore, Verdict

    repository, state = folder / "models", folder / "state"
    for number in range(MODELS):
        version = repository / f"model-{number}" / "1"
        version.mkdir(parents=True)
        (version / "model.toml").write_text(_description(kind, version, number, model_bytes))
        write_manifest(version)
    store = StateStore(state)
    for found in ModelRepository(repository).scan().versions:
        if not found.is_built_in:
            store.record_verdict(found.digest, Verdict(accepted=True))
    return {"OCRSVC_MODELS": str(repository), "OCRSVC_MODELS_STATE": str(state), "OCRSVC_MODEL": "model-0"}


def _description(kind: str, folder: Path, number: int, model_bytes: int) -> str:
    if kind == FAKE:
        own = f'fake_text = "model-{number}"\nfake_model_bytes = {model_bytes}\nfake_warm_up_s = 0.2\n'
        return f'engine = "fake"\n[settings]\n{own}'
    from ocrsvc.engines.model.version import built_in_model

    built_in = built_in_model()
    detection, recognition = built_in.description.detection, built_in.description.recognition[0]
    assert detection is not None
    for file in (detection.file, recognition.file):
        (folder / file).write_bytes(built_in.read(file))
    parts = f'[detection]\nfile = "{detection.file}"\n[[recognition]]\nfile = "{recognition.file}"\n'
    # All models share one digest, so the fastest runtime is measured only once.
    return f'engine = "ppocr"\n{parts}'


def memory_bytes(service: Service) -> int:
    """Anonymous memory of all service processes; memory shared by fork counts once."""
    total = 0
    for pid in family_of(service.pid or 0):
        try:
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:
            continue
        found = re.search(r"Pss_Anon:\s+(\d+) kB", rollup)
        total += 1024 * int(found[1]) if found else 0
    return total


def loaded_bytes(service: Service) -> tuple[int, dict[str, float]]:
    """Memory of the loaded models as the service reports it, and its other model metrics."""
    text = ask(service.url, "GET", "/metrics").text
    found = {
        name: float(value) for name, value in re.findall(r"^(ocrsvc_(?:loaded_)?model\S+) (\S+)$", text, re.MULTILINE)
    }
    return int(found.get("ocrsvc_loaded_models_bytes", 0)), found


def send_pages(service: Service, body: bytes, end_s: float, answers: Answers, seed: int) -> None:
    """Run one client until the time is over."""
    chosen = random.Random(seed)
    weights = [1 / (number + 1) for number in range(MODELS)]
    while time.monotonic() < end_s:
        [number] = chosen.choices(range(MODELS), weights)
        answer = ask(service.url, "POST", f"/v1/ocr?model=model-{number}", body, "image/png", ANSWER_S)
        answers.seconds.append(answer.seconds)
        answers.outcomes[_outcome(answer.status, answer.text, number)] += 1


def _outcome(status: int, text: str, number: int) -> str:
    if status != 200:
        return f"status {status}: {text[:200]}"
    return "right" if json.loads(text)["engine"]["model"] == f"model-{number}" else "WRONG model"


def run(service: Service, body: bytes, clients: int, seconds: float) -> tuple[Answers, list[int]]:
    """Load the service; returns the answers and samples of its memory."""
    answers, end_s, samples = Answers(), time.monotonic() + seconds, list[int]()
    threads = [
        threading.Thread(target=send_pages, args=(service, body, end_s, answers, number)) for number in range(clients)
    ]
    for thread in threads:
        thread.start()
    while time.monotonic() < end_s:
        samples.append(memory_bytes(service))
        time.sleep(SAMPLE_S)
    for thread in threads:
        thread.join()
    return answers, samples


def budget_of(env: dict[str, str]) -> tuple[int, int]:
    """Memory for three models, and the service's memory without models, measured with one loaded."""
    with started(env) as service:
        time.sleep(2.0)
        one, _ = loaded_bytes(service)
        return one * ROOM + one // 4, memory_bytes(service) - one


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns 0 if the budget was kept and every answer was right."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--isolation", choices=("thread", "process"), default="thread")
    parser.add_argument("--kind", choices=(FAKE, REAL), default=FAKE)
    parser.add_argument("--model-mib", type=int, default=64, help="memory of a fake version per process")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--out", type=Path, help="JSON output file; default results/models_memory.json")
    args = parser.parse_args(arguments)
    print_machine()
    body = tiny_png() if args.kind == FAKE else scan(0)
    with tempfile.TemporaryDirectory() as folder:
        env = {"OCRSVC_WORKERS": "1", "OCRSVC_ENGINE_THREADS": "2", "OCRSVC_ISOLATION": args.isolation}
        # Wait for loads, however slow the machine is.
        env["OCRSVC_DEADLINE_S"] = str(ANSWER_S)
        env |= {**make_repository(Path(folder), args.kind, args.model_mib * _MIB)}
        budget_bytes, bare_bytes = budget_of(env)
        with started({**env, "OCRSVC_MODELS_MEMORY": str(budget_bytes)}) as service:
            answers, samples = run(service, body, args.clients, args.seconds)
            _, figures = loaded_bytes(service)
    return report(args, answers, [sample - bare_bytes for sample in samples], budget_bytes, figures)


def report(
    args: argparse.Namespace, answers: Answers, samples: list[int], budget_bytes: int, figures: dict[str, float]
) -> int:
    """Print and write the figures; returns the exit code."""

    def total(pattern: str) -> float:
        return sum(value for name, value in figures.items() if re.search(pattern, name))

    hits, misses = total(r'_leases_total\{.*"hit"'), total(r'_leases_total\{.*"miss"')
    loads, load_s = total(r'_loads_total\{.*"success"'), total(r"_load_seconds_sum")
    tenths = [round(sample / budget_bytes, 2) for sample in samples[:: max(1, len(samples) // 10)]]
    ordered = sorted(answers.seconds)
    found: dict[str, object] = {
        "isolation": args.isolation,
        "kind": args.kind,
        "budget_mib": round(budget_bytes / _MIB, 1),
        "models_of_budget_over_time": tenths,
        "models_of_budget_most": round(max(samples) / budget_bytes, 3),
        "requests": len(ordered),
        "hit_ratio": round(hits / max(1, hits + misses), 3),
        "loads": int(loads),
        "load_mean_s": round(load_s / max(1.0, loads), 3),
        "unloads_for_memory": int(total(r'_unloads_total\{.*"memory"')),
        "median_s": round(statistics.median(ordered), 4),
        "p99_s": round(ordered[int(0.99 * (len(ordered) - 1))], 3),
        "outcomes": dict(answers.outcomes),
    }
    for name, value in found.items():
        print(f"{name}: {value}")
    write_result("models_memory", found, args.out)
    return int(max(samples) > _TOLERANCE * budget_bytes or set(answers.outcomes) != {"right"})


if __name__ == "__main__":
    sys.exit(main())

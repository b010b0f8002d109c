"""Arguments of `ocrsvc batch` about the actors of a Ray cluster."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import Any

from ocrsvc.batch.readers.open_reader import ClusterRequest
from ocrsvc.cli.number_arguments import amount, whole_number
from ocrsvc.errors import BadOption

_COUNT = whole_number()
_AMOUNT = amount(1e9, "number from 0")
# What has an argument of its own, or is the run's to say.
_OWN = ("num_cpus", "num_gpus", "max_restarts", "max_task_retries", "max_concurrency", "name", "lifetime", "namespace")


def add_cluster_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare them."""
    group = parser.add_argument_group("a Ray cluster (--on ray)")
    group.add_argument("--actors", type=_COUNT, metavar="N", help="actors; left out, as many as there is room for")
    group.add_argument("--cpus-per-actor", type=_AMOUNT, default=1.0, metavar="N", help="CPUs of each, or a part (1)")
    group.add_argument("--gpus-per-actor", type=_AMOUNT, default=0.0, metavar="N", help="GPUs of each, or a part (0)")
    group.add_argument(
        "--actor-options",
        default="{}",
        metavar="JSON",
        help="more of Ray's options for them, such as memory, resources, label_selector, runtime_env",
    )
    group.add_argument(
        "--actor-wait",
        type=_AMOUNT,
        default=600.0,
        metavar="SECONDS",
        help="seconds without any actor before giving up (600)",
    )


def cluster_request_of(args: argparse.Namespace) -> ClusterRequest:
    """What they ask for. Raises BadOption."""
    options = _options_of(args.actor_options)
    return ClusterRequest(args.actors, args.cpus_per_actor, args.gpus_per_actor, options, args.actor_wait)


def _options_of(text: str) -> Mapping[str, Any]:
    try:
        options = json.loads(text)
    except ValueError as error:
        raise BadOption(f"--actor-options is no JSON: {error}.") from error
    if not isinstance(options, dict):
        raise BadOption('--actor-options is no object: accepted is such as {"memory": 2000000000}.')
    for name in _OWN:
        if name in options:
            raise BadOption(f"--actor-options has {name}, which `ocrsvc batch` says itself.")
    return options

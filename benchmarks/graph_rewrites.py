"""Time that the rewrites of the models' graphs save on this processor.

    python benchmarks/graph_rewrites.py [--shared ../shared] [--every 20] [--most-pixels 1000000]

Runs the models alone on the tensors that the pipeline passes to them for every n-th corpus page, on one thread, in
pairs: the detector with only its subnormal weights zeroed and with our memory layout
(engines/ppocr/graph/memory_layout.py), the recognizer in single precision and in int8
(engines/ppocr/graph/precision.py). Measures the thread's processor time, which other load hardly affects.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import onnxruntime as ort
from bench.corpus import Corpus
from bench.machine import print_machine
from bench.models import Models, Tensor
from bench.results import write_result
from bench.service import ROOT

DECIDED = ("best", "sure")


def open_model(graph: bytes) -> ort.InferenceSession:
    """Open a session with one thread, as the engine does."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return ort.InferenceSession(graph, options, providers=["CPUExecutionProvider"])


def graphs() -> dict[str, tuple[bytes, bytes]]:
    """The graphs before and after a rewrite, by name of the rewrite."""
    import onnx

    from ocrsvc.engines.ppocr.graph import rewrite
    from ocrsvc.engines.ppocr.runtime import prepare_model
    from ocrsvc.engines.ppocr.runtime.model_parts import DETECTION, RECOGNITION, built_in_part

    detection = onnx.load_from_string(built_in_part(DETECTION).shipped)
    rewrite.zero_subnormal_weights(detection)
    return {
        "detection, layout": (
            detection.SerializeToString(),
            prepare_model.prepare(built_in_part(DETECTION)),
        ),
        "recognition, int8": (
            prepare_model.prepare(built_in_part(RECOGNITION)),
            prepare_model.prepare_int8(built_in_part(RECOGNITION)),
        ),
    }


def time_run(session: ort.InferenceSession, tensor: Tensor, outputs: Sequence[str] | None) -> float:
    """Processor seconds of one run."""
    began_s = time.thread_time()
    session.run(outputs, {session.get_inputs()[0].name: tensor})
    return time.thread_time() - began_s


def compare(pair: tuple[bytes, bytes], tensors: Sequence[Tensor], outputs: Sequence[str] | None) -> dict[str, float]:
    """Run each tensor through both graphs, one right after the other, after a warm-up run of each."""
    before, after = (open_model(graph) for graph in pair)
    for session in (before, after):
        time_run(session, tensors[0], outputs)
    spent = [(time_run(before, tensor, outputs), time_run(after, tensor, outputs)) for tensor in tensors]
    whole = [sum(side) for side in zip(*spent, strict=True)]
    ratios = median(first / second for first, second in spent)
    return {
        "runs": len(spent),
        "before_s": whole[0],
        "after_s": whole[1],
        "sums": whole[0] / whole[1],
        "median": ratios,
    }


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--shared", type=Path, default=ROOT.parent / "shared", help="folder with corpus/ and score.py")
    parser.add_argument("--every", type=int, default=20, help="only every n-th page")
    parser.add_argument("--most-pixels", type=int, default=1_000_000, help="skip larger detector inputs")
    parser.add_argument("--out", type=Path, help="JSON output file; default results/graphs.json")
    args = parser.parse_args()
    print_machine()
    corpus = Corpus(args.shared, None, args.every)
    inputs = Models(1).record([page.file.read_bytes() for page in corpus.pages])
    passes = [tensor for page in inputs for tensor in page.detection if tensor.size <= 3 * args.most_pixels]
    lines = [tensor for page in inputs for tensor in page.recognition]
    (layout, layout_pair), (eight, eight_pair) = graphs().items()
    figures = {layout: compare(layout_pair, passes, None), eight: compare(eight_pair, lines, DECIDED)}
    for name, found in figures.items():
        print(
            f"{name}: {found['runs']} runs, {found['before_s']:.2f} and {found['after_s']:.2f} s of processor time: "
            f"x{found['sums']:.3f}; median of pairs x{found['median']:.3f}"
        )
    write_result("graphs", {"pages": len(inputs), **figures}, args.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())

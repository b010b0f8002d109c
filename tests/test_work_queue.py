"""The work queue: places, order, priorities, and Retry-After."""

import pytest
from support import Clock

from ocrsvc.errors import QueueFull
from ocrsvc.serving.work_queue import BATCH_EVERY, DEFAULT_CONTEXT, Job, Priority, RequestContext, WorkQueue

BATCH = RequestContext("batch")


class Work(Job[str]):
    """A job with a name."""

    def __init__(self, name: str, deadline: float, context: RequestContext) -> None:
        super().__init__(deadline, context)
        self.name = name


def make_queue(places: int = 8, servers: int = 1) -> tuple[WorkQueue[Work], Clock]:
    clock = Clock(100.0)
    return WorkQueue(places, servers, clock), clock


def names(jobs: list[Work] | None) -> list[str]:
    assert jobs is not None
    return [job.name for job in jobs]


def put(queue: WorkQueue[Work], name: str, deadline: float = 1000.0, context: RequestContext = DEFAULT_CONTEXT) -> Work:
    job = Work(name, deadline, context)
    queue.reserve(context.priority)
    queue.put(job)
    return job


@pytest.mark.parametrize(
    ("came", "served"),
    [
        ([("a", 1000.0, ""), ("b", 1000.0, ""), ("c", 1000.0, "")], ["a", "b", "c"]),
        ([("later", 300.0, ""), ("sooner", 200.0, "")], ["sooner", "later"]),
        ([("batch", 200.0, "batch"), ("later", 400.0, ""), ("sooner", 300.0, "")], ["sooner", "later", "batch"]),
        ([("later", 300.0, "batch"), ("sooner", 200.0, "batch")], ["sooner", "later"]),
    ],
    ids=["first come", "earliest deadline", "interactive before batch", "batch by its own deadlines"],
)
def test_the_order_follows_priority_and_deadline(came: list[tuple[str, float, str]], served: list[str]) -> None:
    queue, _ = make_queue()
    for name, deadline, priority in came:
        put(queue, name, deadline, BATCH if priority else DEFAULT_CONTEXT)
    assert names(queue.take(8)) == served


def test_retry_after_follows_the_usual_service_time() -> None:
    queue, _ = make_queue(places=10, servers=2)
    for name in "ab":
        put(queue, name)
    queue.take(2)
    queue.record_run(2, 8.0)
    put(queue, "running")
    queue.take(1)
    for _ in range(10):
        queue.reserve()
    with pytest.raises(QueueFull) as refusal:
        queue.reserve()
    assert refusal.value.retry_after_s == 22  # 10 waiting and 1 running, 4 s each, on 2 servers
    queue, _ = make_queue(places=1)
    for run_s in (1.0, 1.0, 61.0):
        put(queue, "work")
        queue.take(1)
        queue.record_run(1, run_s)
    put(queue, "waiting")
    with pytest.raises(QueueFull) as refusal:
        queue.reserve()
    assert refusal.value.retry_after_s == 7  # the usual 1 s plus a tenth of the 60 s beyond it


@pytest.mark.parametrize("most", [1, 3])
def test_every_fifth_job_is_batch_while_both_priorities_wait(most: int) -> None:
    queue, _ = make_queue(places=40)
    for number in range(20):
        put(queue, f"i{number}")
        put(queue, f"b{number}", context=BATCH)
    taken: list[str] = []
    while len(taken) < 60:
        for name in names(queue.take(most)):
            taken.append(name)
            # Each served caller sends another job.
            put(queue, name, context=BATCH if name.startswith("b") else DEFAULT_CONTEXT)
    batch = [index for index, name in enumerate(taken) if name.startswith("b")]
    assert batch == list(range(BATCH_EVERY - 1, len(taken), BATCH_EVERY))
    # Interactive jobs count towards the next batch job only while batch jobs wait.
    queue, _ = make_queue(places=40)
    for number in range(BATCH_EVERY):
        put(queue, f"alone{number}")
        queue.take(1)
    put(queue, "batch", context=BATCH)
    put(queue, "interactive")
    assert names(queue.take(8)) == ["interactive", "batch"]


@pytest.mark.parametrize(("places", "for_batch"), [(1, 1), (2, 1), (4, 3), (64, 48)])
def test_batch_jobs_leave_a_quarter_of_the_places(places: int, for_batch: int) -> None:
    queue, _ = make_queue(places=places)
    for _ in range(for_batch):
        queue.reserve("batch")
    with pytest.raises(QueueFull):
        queue.reserve("batch")
    for _ in range(places - for_batch):
        queue.reserve()
    with pytest.raises(QueueFull, match=f"All {places} places"):
        queue.reserve()


@pytest.mark.parametrize("priority", ["interactive", "batch"])
def test_every_exit_releases_the_place_of_its_priority(priority: Priority) -> None:
    queue, clock = make_queue(places=4)
    for way in range(20):
        job = put(queue, "work", clock.now_s + 10.0, RequestContext(priority))
        if way % 3 == 0:
            queue.discard(job)
        elif way % 3 == 1:
            clock.now_s += 20.0
        assert names(queue.take(1, timeout_s=0.0) or []) == (["work"] if way % 3 == 2 else [])
        queue.reserve(priority)
        queue.release(priority)
    assert queue.waiting() == 0

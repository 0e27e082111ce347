"""What exists once in a process is shared by threads that need it alike, waited for by others, and given back."""

from __future__ import annotations

import logging
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import pytest
import threadpoolctl

from showerstack.runtime.logs import LOG, Caller, Lines, captured, logging_to
from showerstack.runtime.processes import in_threads, limited_threads
from showerstack.runtime.shared import Setting, each_within, ignored


def switch() -> tuple[Setting, list[int]]:
    """Return a setting, and the positions that it has had: 0 where nobody holds it."""
    history = [0]

    def change(position: int) -> Callable[[], None]:
        before = history[-1]
        history.append(position)
        return lambda: history.append(before)

    return Setting(change), history


@pytest.mark.parametrize("n_threads", [2, 4, 8])
def test_a_setting_has_one_position_at_a_time_and_is_given_back(n_threads: int) -> None:
    setting, history = switch()

    def work(k: int) -> bool:
        position = 1 + k % 3
        with setting.held(position):
            seen = [history[-1]]
            time.sleep(0.001)
            if k % 5 == 0:
                with setting.held(7):  # its own holder may move it, and gets it back
                    seen.append(history[-1] - 7 + position)
            seen.append(history[-1])
        return seen == [position] * len(seen)

    with ThreadPoolExecutor(n_threads) as pool:
        assert all(pool.map(work, range(200)))
    assert history[-1] == 0


def test_those_who_need_it_alike_share_it() -> None:
    setting, history = switch()
    meet = threading.Barrier(2, timeout=60)

    def work(_: int) -> None:
        with setting.held(1):
            meet.wait()

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(work, range(2)))
    assert history == [0, 1, 0]


def test_threads_of_the_same_work_never_wait_for_it() -> None:
    setting, history = switch()

    def work(position: int) -> int:
        with setting.held(position):
            return history[-1]

    with setting.held(1):
        assert list(in_threads(work, ((k,) for k in range(4)), workers=2)) == [1] * 4
    assert history == [0, 1, 0]


def test_what_is_not_taken_holds_nothing() -> None:
    setting, history = switch()
    steps = each_within(lambda: setting.held(3), (history[-1] for _ in range(3)))
    assert [(step, history[-1]) for step in steps] == [(3, 0)] * 3
    closed = []

    def endless() -> Iterator[int]:
        try:
            while True:
                yield 1
        finally:
            closed.append(True)

    some = each_within(lambda: setting.held(3), endless())  # type: ignore[arg-type]
    next(some)
    some.close()
    assert closed == [True]
    assert history[-1] == 0


@pytest.mark.parametrize("n_threads", [2, 4, 8])
def test_threads_of_blas_are_as_before(n_threads: int) -> None:
    def threads() -> list[int]:
        return [pool["num_threads"] for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas"]

    with threadpoolctl.threadpool_limits(2, user_api="blas"):
        before = threads()

        def work(k: int) -> bool:
            with limited_threads(1 + k % 2):
                return threads() == [1 + k % 2] * len(before)

        with ThreadPoolExecutor(n_threads) as pool:
            assert all(pool.map(work, range(60)))
        assert threads() == before == [2] * len(before)


@pytest.mark.parametrize("n_threads", [2, 4, 8])
def test_warnings_are_ignored_where_the_work_is_and_nowhere_else(n_threads: int) -> None:
    heard: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = lambda message, *_: heard.append(str(message))  # type: ignore[assignment]
        before = list(warnings.filters)

        def work(k: int) -> None:
            if k % 2:
                warnings.warn(f"somebody else's {k}", UserWarning, stacklevel=1)
                return
            with ignored(UserWarning, "ours"):
                time.sleep(0.001)
                warnings.warn(f"ours {k}", UserWarning, stacklevel=1)
                warnings.warn(f"other {k}", UserWarning, stacklevel=1)

        with ThreadPoolExecutor(n_threads) as pool:
            list(pool.map(work, range(60)))
        assert list(warnings.filters) == before
        with ignored(UserWarning, "from anywhere", everywhere=True), ThreadPoolExecutor(1) as pool:
            pool.submit(warnings.warn, "from anywhere in a thread", UserWarning).result()
    assert sorted(heard) == sorted(
        [f"somebody else's {k}" for k in range(1, 60, 2)] + [f"other {k}" for k in range(0, 60, 2)]
    )


class _Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@pytest.mark.parametrize("n_threads", [2, 4, 8])
def test_what_one_piece_of_work_logs_is_in_no_others_log(n_threads: int) -> None:
    log, before = logging.getLogger("showerstack.work"), (list(LOG.handlers), LOG.propagate, LOG.level)

    def work(k: int) -> bool:
        kept = _Kept()
        with logging_to(kept, level="INFO"), captured(Caller.here()) as elsewhere:
            list(in_threads(lambda part: log.info("%d %d", k, part), ((part,) for part in range(5)), workers=2))
        return sorted(kept.lines) == [f"{k} {part}" for part in range(5)] and not elsewhere

    with ThreadPoolExecutor(n_threads) as pool:
        assert all(pool.map(work, range(24)))
    assert (list(LOG.handlers), LOG.propagate, LOG.level) == before


def test_a_remark_of_other_work_is_not_lost(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    log, last = logging.getLogger("showerstack.work"), _Kept()
    monkeypatch.setattr(logging, "lastResort", last)
    with logging_to(logging.NullHandler()), ThreadPoolExecutor(1) as pool:
        log.warning("ours")
        pool.submit(log.warning, "theirs").result()  # where no handler is anywhere, Python prints it
        assert [record.getMessage() for record in caplog.records] == ["ours", "theirs"]
        with _no_handlers_at_the_root():
            log.warning("ours")
            pool.submit(log.warning, "theirs").result()
    assert last.lines == ["theirs"]


@contextmanager
def _no_handlers_at_the_root() -> Iterator[None]:
    root = logging.getLogger()
    before, root.handlers = root.handlers, []
    try:
        yield
    finally:
        root.handlers = before


def test_work_for_another_process_is_kept_for_it() -> None:
    caller = Caller(("another", 1), (), logging.INFO)
    log, lines = logging.getLogger("showerstack.work"), Lines()
    with captured(caller) as records:
        log.info("%s", "kept")
    assert [(record.name, record.msg) for record in records] == [("showerstack.work", "kept")]
    assert lines.printed == set()


def test_who_limits_openmp_leaves_the_numbers_of_blas_alone() -> None:
    """Of two that overlap the one that began while BLAS was limited ends last: BLAS is as it was before both."""

    def blas() -> list[int]:
        return [pool["num_threads"] for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas"]

    before = blas()
    with ExitStack() as of_blas, ExitStack() as of_openmp:
        of_blas.enter_context(limited_threads(1, "blas"))
        of_openmp.enter_context(limited_threads(1, "openmp"))
        assert set(blas()) == {1}
        of_blas.close()
        of_openmp.close()
    assert blas() == before

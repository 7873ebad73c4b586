"""Every fault on one cluster, with healthy launches between them.

Faults of scope `launch` disturb nothing but their own launch: several run at once, and beside them controls,
one after another. The others run alone, each followed by a control. A control that is not a PASS makes the
faults before it not right: they were not undone, or were not theirs alone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from queue import Empty, SimpleQueue

from harness.errors import HarnessError
from harness.faults.command import Command
from harness.faults.fault import Expect, Fault
from harness.faults.inject import Injector
from harness.faults.rows import Row

Progress = Callable[[str], None]
CONTROL = Fault(
    name="control", about="Nothing is injected.", strikes="harness", expect=Expect(verdict="PASS", ranks=[])
)


class Matrix:
    """`start` begins; `row` waits for one fault; `stop` ends what runs, undone."""

    def __init__(
        self, injector: Injector, faults: Sequence[Fault], parallel: int, progress: Progress
    ) -> None:
        self.faults = [fault for fault in faults if fault.expect is not None]
        self._injector = injector
        injector.started = self._remember
        self._parallel = parallel
        self._progress = progress
        self._rows: dict[str, Future[Row]] = {fault.name: Future() for fault in self.faults}
        self._commands: list[Command] = []
        self._stopped = threading.Event()
        self._controls = 0
        self._thread = threading.Thread(target=self._all, name="faults", daemon=True)

    def start(self) -> Matrix:
        self._thread.start()
        return self

    def row(self, name: str) -> Row:
        """When it and the control after it are done. Raises what the injection raised."""
        return self._rows[name].result()

    def stop(self) -> None:
        """No more faults; harnesses that run are ended as by Ctrl-C, and what was injected is undone."""
        self._stopped.set()
        for command in self._commands:
            if command.process.poll() is None:
                with suppress(ProcessLookupError):
                    command.interrupt()
        self._thread.join()

    def _remember(self, command: Command) -> None:
        self._commands.append(command)
        if self._stopped.is_set():
            command.interrupt()

    def _all(self) -> None:
        beside = [fault for fault in self.faults if fault.scope == "launch"]
        alone = [fault for fault in self.faults if fault.scope != "launch"]
        if beside:
            self._beside(beside)
        for fault in alone:
            row = self._inject(fault)
            self._settle([(fault, row)])
        for fault in self.faults:
            if not self._rows[fault.name].done():
                self._rows[fault.name].set_exception(HarnessError("the matrix was stopped before this fault"))

    def _beside(self, faults: list[Fault]) -> None:
        todo: SimpleQueue[Fault] = SimpleQueue()
        for fault in faults:
            todo.put(fault)
        done: SimpleQueue[tuple[Fault, Row | Exception]] = SimpleQueue()

        def work() -> None:
            while not self._stopped.is_set():
                try:
                    fault = todo.get_nowait()
                except Empty:
                    return
                done.put((fault, self._inject(fault)))

        with ThreadPoolExecutor(self._parallel) as pool:
            working = [pool.submit(work) for _ in range(self._parallel)]
            waiting: list[tuple[Fault, Row | Exception]] = []
            while not self._stopped.is_set():
                over = all(worker.done() for worker in working)
                with suppress(Empty):
                    if not waiting and not over:
                        waiting.append(done.get(timeout=1))
                with suppress(Empty):
                    while True:
                        waiting.append(done.get_nowait())
                if waiting:
                    self._settle(waiting)
                    waiting = []
                elif over:
                    return

    def _inject(self, fault: Fault) -> Row | Exception:
        if self._stopped.is_set():
            return HarnessError("the matrix was stopped before this fault")
        self._progress(f"{fault.name}: {fault.about}")
        try:
            return self._injector.row(fault)
        except Exception as error:
            return error

    def _settle(self, results: list[tuple[Fault, Row | Exception]]) -> None:
        """A control after them, and their rows."""
        self._controls += 1
        control = CONTROL.model_copy(update={"name": f"control-{self._controls:03}"})
        healthy = self._inject(control)
        for fault, row in results:
            if isinstance(row, Exception):
                self._progress(f"✗ {fault.name}: {row}")
                self._rows[fault.name].set_exception(row)
                continue
            row.control = f"{healthy}"
            if isinstance(healthy, Row):
                row.control, row.control_bundle = healthy.got, healthy.bundle
            if row.control != "PASS":
                row.right = False
                row.wrong = "; ".join(filter(None, [row.wrong, f"the control after it: {row.control}"]))
            mark = "✓" if row.right else "✗"
            self._progress(f"{mark} {fault.name}: {row.got} in {row.seconds:.0f} s {row.wrong}")
            with (self._injector.out / "ledger.jsonl").open("a") as ledger:
                ledger.write(row.model_dump_json() + "\n")
            self._rows[fault.name].set_result(row)

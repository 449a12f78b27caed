"""Reading the threads' frames stops no process (CPython issue 106883), and leaves the garbage collector as it is."""

from __future__ import annotations

import gc
import subprocess
import sys
import textwrap
import threading

import pytest

from rekindle.monitor.base.stacks import stack_of

SCRIPT = textwrap.dedent("""
    import gc, random, threading, time
    from rekindle.monitor.base.stacks import stack_of

    class Litter:
        def __init__(self):
            self.me = self

        def __del__(self):
            time.sleep(0.0002)  # another thread runs meanwhile

    def begin_threads():
        while time.monotonic() < until:
            thread = threading.Thread(target=time.sleep, args=(0,))
            thread.start()
            thread.join()

    def look():
        while time.monotonic() < until:
            for _ in range(random.randrange(4)):
                Litter()
            stack_of(threading.main_thread().ident)

    gc.set_threshold(60, 1000, 1000)
    until = time.monotonic() + 2
    threads = [threading.Thread(target=work, daemon=True) for work in (begin_threads, begin_threads, look)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print("over", gc.isenabled())
""")


def test_a_look_at_the_frames_does_not_stop_the_process_where_threads_begin_and_end() -> None:
    played = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=True)
    assert played.stdout == "over True\n"


@pytest.mark.parametrize("is_on", [True, False])
def test_the_garbage_collector_stays_as_the_script_has_it(is_on: bool) -> None:
    before = gc.isenabled()
    try:
        (gc.enable if is_on else gc.disable)()
        assert "test_the_garbage_collector" in stack_of(threading.get_ident())
        assert gc.isenabled() is is_on
    finally:
        (gc.enable if before else gc.disable)()

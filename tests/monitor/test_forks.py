"""Forked and spawned children, SIGTERM that must have its effect in the end, and several monitors in one process."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rekindle.protocol.keys import manifest_prefix, reply_key
from rekindle.protocol.mailbox import CheckpointReply, ReplyOutcome, RunPhase
from rekindle.protocol.manifests import Manifest
from tests.monitor.boxes import ObservedBox
from tests.monitor.processes import PRELUDE, Script

pytestmark = [
    pytest.mark.long,
    pytest.mark.process,
    pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="POSIX signals only"),
]
Launch = Callable[..., Script]


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    scripts: list[Script] = []

    def begin(body: str, **more: str) -> Script:
        scripts.append(Script(tmp_path, body, **more))
        return scripts[-1]

    yield begin
    for script in scripts:
        script.end()


def manifests(here: Path) -> list[int]:
    folder = here / manifest_prefix()
    return [Manifest.from_json(path.read_bytes()).step for path in sorted(folder.iterdir())] if folder.exists() else []


# ---- children ----


def test_a_forked_child_ends_at_sigterm_even_if_it_comes_right_after_the_fork(launch: Launch) -> None:
    script = launch("""
        mon = start(signals=("TERM", "USR1"))
        mon.step(1)
        codes = set()
        for _ in range(200):
            child = os.fork()
            if child == 0:
                while True: time.sleep(1)
            os.kill(child, signal.SIGTERM)
            codes.add(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        mon.step(2)
        say(codes=sorted(codes), stop=mon.should_stop, ours=bool(signal.pthread_sigmask(signal.SIG_BLOCK, [])))
        mon.finish()
    """)
    assert script.heard() == {"codes": [-signal.SIGTERM], "stop": False, "ours": False}
    assert script.ended()[0] == 0


def test_a_child_that_a_thread_forks_ends_at_sigterm_too(launch: Launch) -> None:
    script = launch("""
        mon = start(signals=("TERM", "USR1"))
        mon.step(1)
        codes = []
        def fork():
            child = os.fork()
            if child == 0:
                while True: time.sleep(1)
            os.kill(child, signal.SIGTERM)
            codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        for _ in range(20):
            thread = threading.Thread(target=fork)
            thread.start()
            thread.join()
        say(codes=sorted(set(codes)))
        mon.finish()
    """)
    assert script.heard() == {"codes": [-signal.SIGTERM]}
    assert script.ended()[0] == 0


def test_a_pool_and_a_daemon_process_end_with_their_trainer(launch: Launch) -> None:
    script = launch("""
        import multiprocessing
        context = multiprocessing.get_context("fork")
        mon = start(signals=("TERM", "USR1"))
        mon.step(1)
        pool = context.Pool(2)
        pool.map(abs, range(4))
        daemon = context.Process(target=time.sleep, args=(3600,), daemon=True)
        daemon.start()
        pool.terminate()
        pool.join()
        say(ended=True)
        mon.finish()
    """)
    assert script.heard() == {"ended": True}
    assert script.ended()[0] == 0, "the daemon process is ended by SIGTERM when the interpreter exits"


def test_a_forked_child_has_the_scripts_handlers_back_and_the_wakeup_descriptor_is_free(launch: Launch) -> None:
    script = launch("""
        def mine(*args): say(mine=True)
        signal.signal(signal.SIGTERM, mine)
        mon = start(signals=("TERM", "USR1"))
        mon.step(1)
        if os.fork() == 0:
            say(
                term=signal.getsignal(signal.SIGTERM) is mine,
                usr1=signal.getsignal(signal.SIGUSR1) == signal.SIG_IGN,
                free=signal.set_wakeup_fd(-1) == -1,
                silent=mon.is_silent,
                taken=sorted(mon.signals_taken),
            )
            os._exit(0)
        os.wait()
        say(parent=signal.getsignal(signal.SIGTERM) is not mine)
        mon.finish()
        say(restored=signal.getsignal(signal.SIGTERM) is mine)
    """)
    assert script.heard() == {"term": True, "usr1": True, "free": True, "silent": True, "taken": []}
    assert script.heard() == {"parent": True}
    assert script.heard() == {"restored": True}


def test_a_forked_child_can_use_the_whole_face_while_a_thread_of_the_parent_held_a_lock(launch: Launch) -> None:
    script = launch("""
        mon = start(signals=("TERM", "USR1"))
        mon.step(1)
        held = threading.Event()
        def hold():
            with mon._trouble._lock:
                held.set()
                time.sleep(3600)
        threading.Thread(target=hold, daemon=True).start()
        held.wait()
        child = os.fork()
        if child == 0:
            mon.step(2, loss=1.0); mon.saved("/x", 2); mon.alive(); mon.flush(); mon.health(); mon.should_skip(3)
            with mon.phase("saving"): pass
            mon.finish()
            os._exit(0)
        say(child=os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        os._exit(0)
    """)
    assert script.heard() == {"child": 0}


def test_a_forked_child_may_start_a_monitor_of_its_own(launch: Launch) -> None:
    script = launch("""
        mon = start(signals=("TERM", "USR1"))
        mon.step(1)
        child = os.fork()
        if child == 0:
            own = start(signals=("TERM", "USR1"), env={"TRAINING_JOB_NAME": "run-2", "REKINDLE_JOB_ID": "other"})
            own.step(1)
            say(silent=own.is_silent)
            own.finish()
            os._exit(0)
        os.waitpid(child, 0)
        say(parent=mon.is_silent)
        mon.finish()
    """)
    assert script.heard() == {"silent": False}
    assert script.heard() == {"parent": False}


CHILD = """
own = start(save=None)
for step in range(1, 4): own.step(step, loss=float("nan"))
said = own.is_silent
own.finish()
"""
WAYS = {
    "fork": """
        def begin():
            # Silent before its ranks share anything: it has its parent's connections.
            child = CHILD.replace("save=None", "save=None, ranks=Ranks(share=lambda mine: os._exit(9))")
            if os.fork() == 0:
                names = dict(globals()); exec(child, names); say(silent=names["said"]); os._exit(0)
            assert os.wait()[1] == 0
        """,
    "spawn": """
        def begin():
            import multiprocessing, subprocess
            work = "def work(): exec(CODE, globals())"
            (here / "spawned.py").write_text(f"{WHOLE}\\nCODE = {CHILD + 'say(silent=said)'!r}\\n{work}")
            sys.path.insert(0, str(here))
            import spawned
            child = multiprocessing.get_context("spawn").Process(target=spawned.work)
            child.start()
            child.join()
        """,
    "subprocess": """
        def begin():
            import subprocess
            subprocess.run([sys.executable, "-c", WHOLE + CHILD + "say(silent=said)", str(here)], check=True)
        """,
}


@pytest.mark.parametrize("way", WAYS)
def test_a_child_that_starts_a_monitor_of_its_parents_run_stays_silent(
    way: str, launch: Launch, tmp_path: Path
) -> None:
    """A shared module starts it in an evaluation, say: it writes no heartbeat, answers nothing, and ends nothing."""
    script = launch(
        f"""
        WHOLE, CHILD = {PRELUDE!r}, {CHILD!r}
        """
        + WAYS[way]
        + """
        if __name__ == "__main__":
            mon = start()
            for step in range(1, 30): mon.step(step, loss=1.0); time.sleep(0.01)
            begin()
            hear()
            for step in range(30, 10**9):
                if mon.should_stop: break
                mon.step(step, loss=1.0); time.sleep(0.01)
                if not (step % 50): say(step=step)
        """
    )
    assert script.heard() == {"silent": True}
    box = ObservedBox(tmp_path)
    heartbeat = box.heartbeat("run-1")
    assert heartbeat is not None
    assert (heartbeat.phase, heartbeat.loss) == (RunPhase.TRAINING, 1.0), "the parent's own"
    box.ask("r1", "run-1")
    script.tell()
    while box.get(reply_key("r1")) is None:
        script.heard()
    reply = CheckpointReply.from_json(box.get(reply_key("r1")) or b"")
    assert reply.outcome is ReplyOutcome.SAVED, "nothing that the child has seen keeps the parent from saving"


# ---- SIGTERM ----


def test_a_script_that_never_looks_at_should_stop_ends_of_sigterm_once_it_is_saved(
    launch: Launch, tmp_path: Path
) -> None:
    script = launch("""
        mon = start(signals=("TERM", "USR1"))
        mon.step(1)
        say(ready=True)
        for step in range(2, 10**9):
            time.sleep(0.01)
            mon.step(step)
    """)
    script.heard()
    script.send(signal.SIGTERM)
    code, errors = script.ended()
    assert code == -signal.SIGTERM
    assert "without looking at should_stop" in errors
    assert len(manifests(tmp_path)) == 1, "the save that it asked for is whole"


def test_a_rank_that_is_stuck_in_c_under_torchrun_ends_of_sigterm(launch: Launch) -> None:
    script = launch(
        """
        mon = start(signals=("TERM", "USR1"), env=dict(os.environ) | {"REKINDLE_JOB_ID": "job"})
        for step in range(1, 12):
            time.sleep(0.01)
            mon.step(step)
        say(ready=True)
        stuck_in_c()
        """,
        TORCHELASTIC_RUN_ID="run",
        LOCAL_WORLD_SIZE="1",
    )
    script.heard()
    script.send(signal.SIGTERM)
    code, errors = script.ended()
    assert code == -signal.SIGTERM
    assert "has not moved" in errors


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ("save=None", "nothing can be saved"),
        ("ranks=Ranks(world_size=2, rank=1, exchange=lambda: None)", "nothing can be saved"),
        ("config={'term_grace_s': 2.0}", "did not end within 2 s"),
    ],
)
def test_a_rank_that_cannot_save_ends_of_sigterm_as_without_the_monitor(
    launch: Launch, arguments: str, why: str
) -> None:
    script = launch(f"""
        mon = start(signals=("TERM", "USR1"), {arguments})
        mon.step(1)
        say(ready=True)
        stuck_in_c()
    """)
    script.heard()
    script.send(signal.SIGTERM)
    code, errors = script.ended()
    assert code == -signal.SIGTERM
    assert why in errors


def test_before_the_first_step_sigterm_ends_the_process_at_once(launch: Launch) -> None:
    script = launch("""
        mon = start(signals=("TERM", "USR1"))
        say(ready=True)
        stuck_in_c()
    """)
    script.heard()
    script.send(signal.SIGTERM)
    assert script.ended()[0] == -signal.SIGTERM


def test_a_silent_monitor_leaves_sigterm_alone(launch: Launch) -> None:
    script = launch("""
        mon = start(signals=("TERM", "USR1"), mailbox=None)
        say(silent=mon.is_silent)
        stuck_in_c()
    """)
    assert script.heard() == {"silent": True}
    script.send(signal.SIGTERM)
    assert script.ended()[0] == -signal.SIGTERM


def test_a_script_that_was_told_to_stop_has_the_grace_to_end_by_itself(launch: Launch, tmp_path: Path) -> None:
    script = launch("""
        mon = start(signals=("TERM", "USR1"))
        mon.step(1)
        say(ready=True)
        hear()
        step = 1
        while not mon.should_stop:
            step += 1
            mon.step(step)
        say(told=True)
        hear()  # its own last evaluation; no step, for longer than a rank may be silent
        mon.finish()
        say(finished=True)
    """)
    script.heard()
    script.send(signal.SIGTERM)
    script.tell()
    assert script.heard() == {"told": True}
    with pytest.raises(Exception, match="timed out"):
        script.process.wait(6)
    script.tell()
    assert script.heard() == {"finished": True}
    assert script.ended()[0] == 0
    assert manifests(tmp_path) == [2]


def test_sigterm_twice_at_once_is_one_wish_and_a_third_is_obeyed(launch: Launch, tmp_path: Path) -> None:
    script = launch("""
        mon = start(signals=("TERM", "USR1"))
        mon.step(1)
        say(ready=True)
        hear()
        os.kill(os.getpid(), signal.SIGTERM); time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGTERM); time.sleep(0.2)
        mon.step(2)
        say(stop=mon.should_stop)
        os.kill(os.getpid(), signal.SIGTERM)
        stuck_in_c()
    """)
    script.heard()
    script.tell()
    assert script.heard() == {"stop": True}
    code, errors = script.ended()
    assert code == -signal.SIGTERM
    assert "sent again" in errors


def test_a_sigterm_that_the_loop_never_learned_of_has_its_effect_after_finish(launch: Launch) -> None:
    script = launch("""
        mon = start(signals=("TERM", "USR1"))
        mon.step(1)
        os.kill(os.getpid(), signal.SIGTERM)
        say(alive=True)
        mon.finish()
        say(immortal=True)
    """)
    assert script.heard() == {"alive": True}
    assert script.ended()[0] == -signal.SIGTERM


def test_the_scripts_own_handler_decides_what_sigterm_does(launch: Launch) -> None:
    script = launch("""
        calls = []
        signal.signal(signal.SIGTERM, lambda *_: calls.append(1))
        mon = start(signals=("TERM", "USR1"), save=None)
        mon.step(1)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(7)  # longer than a rank that cannot save puts the signal off
        mon.finish()
        say(calls=len(calls))
    """)
    assert script.heard() == {"calls": 1}
    assert script.ended()[0] == 0


def test_handlers_in_c_stay_or_come_back(launch: Launch) -> None:
    script = launch("""
        import faulthandler
        faulthandler.register(signal.SIGUSR1)
        faulthandler.register(signal.SIGTERM, chain=True)
        mon = start(signals=("TERM", "USR1"))
        mon.step(1)
        os.kill(os.getpid(), signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGTERM)
        mon.step(2)
        say(stop=mon.should_stop)
        mon.finish()
        say(finished=True)
        os.kill(os.getpid(), signal.SIGTERM)
        while True: time.sleep(1)
    """)
    assert script.heard() == {"stop": True}
    assert script.heard() == {"finished": True}
    code, errors = script.ended()
    assert code == -signal.SIGTERM
    assert errors.count("Current thread") == 2, "SIGUSR1 dumps at once, SIGTERM after the end again"


@pytest.mark.parametrize("end", ["mon.finish(); say(ready=True); time.sleep(60)", "say(ready=True); stuck_in_c()"])
def test_a_librarys_handler_of_sigterm_has_it_again_after_the_end_and_on_a_stuck_rank(launch: Launch, end: str) -> None:
    """Stands for such a handler: `_exit` of the C library, which is called with the signal's number."""
    script = launch(f"""
        library = ctypes.CDLL(None)
        library.signal(int(signal.SIGTERM), library._exit)
        mon = start(signals=("TERM", "USR1"), save=None, config={{"term_grace_s": 1.0}})
        mon.step(1)
        {end}
    """)
    script.heard()
    script.send(signal.SIGTERM)
    assert script.ended()[0] == signal.SIGTERM, "the exit code that the handler gave"


def test_handlers_installed_later_are_left_in_place(launch: Launch) -> None:
    script = launch("""
        mon = start(signals=("TERM", "USR1"))
        mon.step(1)
        later = lambda *_: say(later=True)
        signal.signal(signal.SIGTERM, later)
        os.kill(os.getpid(), signal.SIGTERM)
        mon.step(2)
        mon.finish()
        say(stop=mon.should_stop, kept=signal.getsignal(signal.SIGTERM) is later)
    """)
    assert script.heard() == {"later": True}
    assert script.heard() == {"stop": False, "kept": True}
    assert script.ended()[0] == 0


def test_a_monitor_that_is_finished_on_another_thread_swallows_no_sigterm(launch: Launch) -> None:
    script = launch("""
        mon = start(signals=("TERM", "USR1"))
        mon.step(1)
        thread = threading.Thread(target=mon.finish)
        thread.start()
        thread.join()
        say(finished=mon.is_silent)
        hear()
    """)
    assert script.heard() == {"finished": True}
    script.send(signal.SIGTERM)
    assert script.ended()[0] == -signal.SIGTERM


# ---- several monitors ----


def test_a_second_monitor_of_the_same_run_takes_over_with_signals_and_what_is_owed(
    launch: Launch, tmp_path: Path
) -> None:
    script = launch("""
        first = start(signals=("TERM", "USR1"))
        first.step(1)
        os.kill(os.getpid(), signal.SIGTERM)
        second = start(signals=("TERM", "USR1"))
        first.step(2)
        second.step(3)
        say(first=first.is_silent, second=second.is_silent, stop=second.should_stop)
        second.finish()
        say(default=signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, free=signal.set_wakeup_fd(-1) == -1)
        third = start(signals=("TERM", "USR1"))
        third.step(4)
        say(third=third.is_silent)
        third.finish()
        for thread in threading.enumerate():
            if thread.name.startswith("rekindle-"):
                thread.join(120)
        say(threads=[thread.name for thread in threading.enumerate() if thread.name.startswith("rekindle-")])
    """)
    assert script.heard() == {"first": True, "second": False, "stop": True}
    assert script.heard() == {"default": True, "free": True}
    assert script.heard() == {"third": False}
    assert script.heard() == {"threads": []}
    assert script.ended()[0] == 0
    assert manifests(tmp_path) == [3]


def test_a_monitor_of_another_job_is_refused_while_one_lives(launch: Launch) -> None:
    script = launch("""
        first = start(signals=("TERM", "USR1"))
        first.step(1)
        other = start(signals=("TERM", "USR1"), env={"REKINDLE_JOB_ID": "other"})
        again = start(signals=("TERM", "USR1"), env={"REKINDLE_JOB_ID": "other"})
        say(first=first.is_silent, other=other.is_silent)
        first.finish()
        other = start(env={"REKINDLE_JOB_ID": "other"})
        say(other=other.is_silent)
        other.finish()
    """)
    assert script.heard() == {"first": False, "other": True}
    assert script.heard() == {"other": False}
    assert "stays silent" in script.ended()[1]


def test_finish_from_many_threads_and_from_a_signal_handler_inside_finish_ends_once(launch: Launch) -> None:
    script = launch("""
        mon = start()
        inside = []
        def handler(*_):
            if len(inside) > 3:  # on a slow machine the next signal comes before this one is dealt with
                return
            inside.append(1)
            mon.finish("alarm")
            inside.pop()
        signal.signal(signal.SIGALRM, handler)
        mon.step(1)
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
        threads = [threading.Thread(target=mon.finish) for _ in range(8)]
        for thread in threads: thread.start()
        mon.finish()
        for thread in threads: thread.join()
        signal.setitimer(signal.ITIMER_REAL, 0)
        say(silent=mon.is_silent, errors=[name for name in mon.health() if name.startswith("inner")])
    """)
    assert script.heard() == {"silent": True, "errors": []}
    assert script.ended()[0] == 0


def test_a_signal_handler_may_use_the_monitor_at_any_moment(launch: Launch) -> None:
    script = launch("""
        mon = start()
        calls = []
        is_inside = []
        def handler(*_):
            calls.append(1)
            if len(is_inside) > 3:  # on a slow machine the next signal comes before this one is dealt with
                return
            is_inside.append(1)
            mon.health(); mon.saved(here / "none", 1); mon.alive(); mon.local_non_finite(len(calls) * 20, "grad")
            is_inside.pop()
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
        step = 0
        while len(calls) < 2000:
            step += 1
            mon.step(step, loss=float("nan"), work_s="x")
        signal.setitimer(signal.ITIMER_REAL, 0)
        mon.finish()
        say(done=True)
    """)
    assert script.heard() == {"done": True}
    assert script.ended()[0] == 0

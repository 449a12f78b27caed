"""The options of sbatch. Sources: sbatch(1) of 22.05 to 26.05; slurm src/common/slurm_opt.c; NVIDIA/pyxis README."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from rekindle.compat import StrEnum


class TakesValue(StrEnum):
    """Whether an option has a value."""

    VALUE = "value"
    OPTIONAL = "optional"  # joined by "=", or to the letter
    FLAG = "flag"


class Kind(StrEnum):
    """What becomes of an option when its job is submitted again."""

    SHOWN = "shown"  # Slurm's record or the environment of the submission shows it; the comparison sees its loss
    CARRIED = "carried"  # given again as it stood on the line
    ONCE = "once"  # about that one submission, or done anew for each
    PLUGIN = "plugin"  # a SPANK plug-in's: given again where the plug-in's own variable confirms it


class Known(StrEnum):
    """To which sbatch."""

    CORE = "22.05"  # to every version that is supported; only these make a shortened name ambiguous
    NEWER = "newer"  # to some after 22.05
    OLDER = "older"  # gone, or never documented; an old script or line may have it
    PYXIS = "pyxis"  # where the container plug-in Pyxis is installed


@dataclass(frozen=True, slots=True)
class Spec:
    """One option of sbatch's."""

    name: str
    letter: str | None
    takes: TakesValue
    kind: Kind
    known: Known


# name, letter, value, kind, known
_TABLE: Final = """
    account                  A value    shown   22.05
    acctg-freq               - value    carried 22.05
    array                    a value    shown   22.05
    async                    - flag     once    older
    batch                    - value    carried 22.05
    bb                       - value    shown   22.05
    bbf                      - value    shown   22.05
    begin                    b value    once    22.05
    burst-buffer             - value    shown   older
    chdir                    D value    shown   22.05
    cluster                  - value    once    older
    cluster-constraint       - value    once    22.05
    clusters                 M value    once    22.05
    comment                  - value    shown   22.05
    consolidate-segments     - optional carried newer
    constraint               C value    shown   22.05
    container                - value    shown   22.05
    container-entrypoint     - flag     plugin  pyxis
    container-entrypoint-log - flag     plugin  pyxis
    container-env            - value    plugin  pyxis
    container-id             - value    carried newer
    container-image          - value    plugin  pyxis
    container-mount-home     - flag     plugin  pyxis
    container-mounts         - value    plugin  pyxis
    container-name           - value    plugin  pyxis
    container-readonly       - flag     plugin  pyxis
    container-remap-root     - flag     plugin  pyxis
    container-save           - value    plugin  pyxis
    container-workdir        - value    plugin  pyxis
    container-writable       - flag     plugin  pyxis
    contiguous               - flag     shown   22.05
    core-spec                S value    shown   22.05
    cores-per-socket         - value    carried 22.05
    cpu-freq                 - value    carried 22.05
    cpus-per-gpu             - value    shown   22.05
    cpus-per-task            c value    shown   22.05
    deadline                 - value    once    22.05
    delay-boot               - value    carried 22.05
    dependency               d value    shown   22.05
    distribution             m value    shown   22.05
    error                    e value    shown   22.05
    exclude                  x value    shown   22.05
    exclusive                - optional shown   22.05
    export                   - value    shown   22.05
    export-file              - value    once    22.05
    external                 - flag     carried newer
    extra                    - value    carried newer
    extra-node-info          B value    carried 22.05
    get-user-env             - optional once    22.05
    gid                      - value    shown   22.05
    gpu-bind                 - value    shown   22.05
    gpu-freq                 - value    shown   22.05
    gpus                     G value    shown   22.05
    gpus-per-node            - value    shown   22.05
    gpus-per-socket          - value    shown   22.05
    gpus-per-task            - value    shown   22.05
    gres                     - value    shown   22.05
    gres-flags               - value    carried 22.05
    help                     h flag     once    22.05
    hint                     - value    shown   22.05
    hold                     H flag     once    22.05
    ignore-pbs               - flag     once    22.05
    immediate                I flag     once    older
    input                    i value    shown   22.05
    job-name                 J value    shown   22.05
    kill-on-invalid-dep      - value    carried 22.05
    licenses                 L value    shown   22.05
    mail-type                - value    shown   22.05
    mail-user                - value    shown   22.05
    mcs-label                - value    carried 22.05
    mem                      - value    shown   22.05
    mem-bind                 - value    carried 22.05
    mem-per-cpu              - value    shown   22.05
    mem-per-gpu              - value    shown   22.05
    mincpus                  - value    carried 22.05
    network                  - value    shown   22.05
    nice                     - optional shown   22.05
    no-container-entrypoint  - flag     plugin  pyxis
    no-container-mount-home  - flag     plugin  pyxis
    no-container-remap-root  - flag     plugin  pyxis
    no-kill                  k optional carried 22.05
    no-requeue               - flag     shown   22.05
    nodefile                 F value    shown   22.05
    nodelist                 w value    shown   22.05
    nodes                    N value    shown   22.05
    ntasks                   n value    shown   22.05
    ntasks-per-core          - value    shown   22.05
    ntasks-per-gpu           - value    shown   22.05
    ntasks-per-node          - value    shown   22.05
    ntasks-per-socket        - value    shown   22.05
    oom-kill-step            - optional carried newer
    open-mode                - value    once    22.05
    output                   o value    shown   22.05
    overcommit               O flag     carried 22.05
    oversubscribe            s flag     shown   22.05
    parsable                 - flag     once    22.05
    partition                p value    shown   22.05
    power                    - value    shown   22.05
    prefer                   - value    shown   22.05
    priority                 - value    once    22.05
    profile                  - value    shown   22.05
    propagate                - optional once    22.05
    qos                      q value    shown   22.05
    quiet                    Q flag     once    22.05
    reboot                   - flag     shown   22.05
    requeue                  - flag     shown   22.05
    reservation              - value    shown   22.05
    resv-ports               - optional carried 22.05
    segment                  - value    carried newer
    share                    - flag     shown   newer
    signal                   - value    carried 22.05
    sockets-per-node         - value    carried 22.05
    spread-job               - flag     carried 22.05
    spread-segments          - flag     carried newer
    stepmgr                  - flag     carried newer
    switches                 - value    shown   22.05
    test-only                - flag     once    22.05
    thread-spec              - value    shown   22.05
    threads-per-core         - value    shown   22.05
    time                     t value    shown   22.05
    time-min                 - value    shown   22.05
    tmp                      - value    shown   22.05
    tres-bind                - value    carried newer
    tres-per-task            - value    shown   newer
    uid                      - value    shown   22.05
    usage                    u flag     once    22.05
    use-min-nodes            - flag     carried 22.05
    verbose                  v flag     once    22.05
    version                  V flag     once    22.05
    wait                     W flag     once    22.05
    wait-all-nodes           - value    carried 22.05
    wckey                    - value    carried 22.05
    workdir                  - value    shown   older
    wrap                     - value    once    22.05
"""


def _specs() -> Iterator[Spec]:
    for row in _TABLE.split("\n"):
        if row.strip():
            name, letter, takes, kind, known = row.split()
            yield Spec(name, None if letter == "-" else letter, TakesValue(takes), Kind(kind), Known(known))


OPTIONS: Final[Mapping[str, Spec]] = {spec.name: spec for spec in _specs()}
LETTERS: Final[Mapping[str, Spec]] = {spec.letter: spec for spec in OPTIONS.values() if spec.letter}
CORE: Final = tuple(spec.name for spec in OPTIONS.values() if spec.known is Known.CORE)

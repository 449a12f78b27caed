#!/bin/bash
# Installs Rekindle's agent on a Slurm head node, tells every node the cluster's name, and looks after what it installed.
#
# HyperPod: put the folder that `rekindle slurm-agent bundle` makes beside on_create.sh, and call this at its end, on every
# node (docs/hyperpod-slurm.md). It is safe to run again, and is run again whenever HyperPod makes the node anew.
# ParallelCluster, plain Slurm: run it by hand, as root, on the head node. `rekindle slurm-agent VERB` runs it from anywhere.
#
#   rekindle_agent.sh [VERB] [--dry-run] [--give-back] [--force] [--strict] [--controller | --not-controller] [--from s3://BUCKET/PREFIX] [--root DIR]
#     install            (the default) install or update, start, and keep the version before; nothing to do is fine
#     upgrade            the same where an agent is installed, and only there
#     rollback           back to the version before, with its settings and a journal that it can read
#     uninstall          stop, release the jobs that are held by us, resume the nodes drained by us, remove everything,
#                        also what is kept of this cluster in S3 unless another head node has an agent
#     status             what is installed, whether it runs, what its own --check says
#     stop               stop within ten seconds, here and on every other head node, and stay stopped; no run is ended.
#                        Says what is held by us then; with --give-back releases and resumes it
#     --dry-run          say what would be done, and do nothing
#     --force            with uninstall: remove also where not all could be given back
#     --strict           exit codes tell how it ended: always so where a VERB is given. Without, always 0: a lifecycle
#                        script that fails takes the whole cluster's creation with it
#     --controller       do not look whether this is a head node
#     --from             fetch the folder first (aws s3 cp), for a node to which only this file was brought
#     --root             install below another root (REKINDLE_ROOT), for tests and images
# Exit codes: 0 done, for status also: installed and running; 1 failed, or not running; 2 wrong usage; 3 not installed.
# Everything that is done stands in /var/log/rekindle-install.log.
set -u
umask 022 # root's own may be stricter, and the user rekindle and the nodes' monitors read what is installed

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
strict=0 root=${REKINDLE_ROOT:-} role='' from='' bad_usage='' verb='' dry='' force='' gives=''
while [ $# -gt 0 ]; do
    case $1 in
    install | upgrade | rollback | uninstall | status | stop)
        [ -z "$verb" ] || bad_usage="two verbs: $verb and $1"
        verb=$1 strict=1
        ;;
    --strict) strict=1 ;;
    --dry-run) dry=1 ;;
    --force) force=1 ;;
    --give-back) gives=1 ;;
    --controller) role=controller ;;
    --not-controller) role=other ;;
    --from)
        from=${2:-}
        [ $# -gt 1 ] && shift
        ;;
    --root)
        root=${2:-}
        [ $# -gt 1 ] && shift
        ;;
    *) bad_usage="unknown argument: $1" ;;
    esac
    shift
done

log_file=$root/var/log/rekindle-install.log
[ -n "$dry" ] || mkdir -p "$root/var/log" 2>/dev/null
[ -z "$dry" ] && [ "$verb" != status ] || log_file=/dev/null
SERVICE=rekindle-agent.service
opt=$root/opt/rekindle state=$root/var/lib/rekindle unit=$root/etc/systemd/system/$SERVICE env_to=$root/etc/rekindle/agent.env
allow=$root/etc/rekindle/allow.conf
say() {
    printf '%s rekindle_agent: %s\n' "$(date -u +%FT%TZ)" "$*" | tee -a "$log_file" 2>/dev/null || true
}
fail() {
    say "ERROR: $*"
    exit 1
}
refuse() { # refuse CODE TEXT
    say "ERROR: ${*:2}"
    exit "$1"
}
# Says it; true where it shall also be done.
would() {
    [ -z "$dry" ] || say "would $*"
    [ -z "$dry" ]
}

# Prints one fact of SageMaker's files: `cluster` its name, `role` controller or other. Nothing where they do not say it.
# Any Python will do; what cannot be read is nothing said.
fact() {
    CONFIG=${SAGEMAKER_RESOURCE_CONFIG_PATH:-$root/opt/ml/config/resource_config.json} \
        PROVISIONING=${PROVISIONING_PARAMETERS:-$here/../provisioning_parameters.json} \
        ADDRESSES=${REKINDLE_ADDRESSES:-$(hostname -I 2>/dev/null)} WANTED=$1 python3 - 2>>"$log_file" <<'PY'
import json, os

def read(path):
    try:
        with open(path) as file:
            found = json.load(file)
        return found if isinstance(found, dict) else {}
    except (OSError, ValueError):
        return {}

config = read(os.environ["CONFIG"])
addresses = os.environ["ADDRESSES"].split()
if os.environ["WANTED"] == "cluster":
    print((config.get("ClusterConfig") or {}).get("ClusterName") or "")
else:
    mine = [
        group
        for group in config.get("InstanceGroups") or []
        for instance in group.get("Instances") or []
        if instance.get("CustomerIpAddress") in addresses
    ]
    if mine:
        group = mine[0]
        # Newer clusters say a group's part in SlurmConfig, older ones in the file beside the lifecycle scripts.
        node_type = (group.get("SlurmConfig") or {}).get("NodeType")
        named = read(os.environ["PROVISIONING"]).get("controller_group")
        is_controller = node_type == "Controller" if node_type else bool(named) and group.get("Name") == named
        known = bool(node_type) or bool(named)
        # An agent on every head node: of these the one that holds the cluster's lease acts.
        print("controller" if is_controller else "other" if known else "")
PY
}

find_role() {
    [ -n "$role" ] && return
    role=$(fact role)
    if [ -z "$role" ] && [ -r "$root/etc/parallelcluster/cfnconfig" ]; then
        # Source: ParallelCluster, /etc/parallelcluster/cfnconfig: cfn_node_type is HeadNode, ComputeFleet or LoginNode
        if grep -q '^cfn_node_type="\{0,1\}HeadNode"\{0,1\}$' "$root/etc/parallelcluster/cfnconfig"; then
            role=controller
        else
            role=other
        fi
    fi
    [ -n "$role" ] || fail "nothing says whether this is the head node: give --controller there"
}

find_python() {
    local candidate own=''
    own=$(own_python)
    for candidate in "${REKINDLE_PYTHON:-}" "$own" python3.13 python3.12 python3.11 python3.10 python3; do
        [ -n "$candidate" ] || continue
        if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
            [ -n "$root" ] || is_for_all "$candidate" || { say "passed over: $candidate, which not every user can run"; continue; }
            python=$(command -v "$candidate")
            return
        fi
    done
    return 1
}

is_for_all() { # the agent is no root: a Python in root's home would be one without a standard library to it
    "$1" - 2>/dev/null <<'PY'
import os, pathlib, sys

files = [pathlib.Path(one).resolve() for one in (sys.executable, os.__file__)]
sys.exit(not all(one.stat().st_mode & 0o4 and all(up.stat().st_mode & 0o1 for up in one.parents) for one in files))
PY
}

# The Python that the folder carries, unpacked under its digest: `rekindle slurm-agent bundle --python ARCHIVE`.
own_python() {
    local archive=$here/python.tar.gz digest home
    [ -r "$archive" ] || return 0
    digest=$(sha256sum <"$archive" | cut -c1-16)
    home=$opt/python-$digest
    if [ -z "$dry" ] && [ ! -e "$home/.complete" ]; then
        rm -rf "$home"
        { mkdir -p "$home" && tar -xzf "$archive" -C "$home" && touch "$home/.complete"; } >>"$log_file" 2>&1 || return 0
    fi
    echo "$home/python/bin/python3"
}

install_python() { # Ubuntu 22.04 brings 3.10; Ubuntu 20.04 and Amazon Linux 2023 bring an older one, 3.11 lies beside it
    if command -v apt-get >/dev/null; then
        DEBIAN_FRONTEND=noninteractive timeout 300 apt-get -q -o DPkg::Lock::Timeout=120 update &&
            DEBIAN_FRONTEND=noninteractive timeout 300 apt-get -q -y -o DPkg::Lock::Timeout=120 \
                install --no-install-recommends python3.11 python3.11-venv
    elif command -v dnf >/dev/null; then
        timeout 300 dnf -q -y install python3.11
    fi >>"$log_file" 2>&1
}

# One environment per content of the bundle, with the unit that came with it: an update makes another one.
install_package() {
    local digest requirements=$here/requirements.txt
    [ -r "$requirements" ] || fail "there is no $requirements: make the folder with rekindle slurm-agent bundle"
    [ -r "$here/$SERVICE" ] || fail "the unit $here/$SERVICE is not there"
    digest=$({ cat "$requirements" "$here/$SERVICE"; cd "$here" && ls wheels 2>/dev/null; "$python" --version; } | sha256sum | cut -c1-16)
    home=$opt/$digest
    [ -e "$home/.complete" ] && return
    would "make $home with $python and install the package there" || return 0
    rm -rf "$home"
    mkdir -p "$opt" || fail "$opt cannot be made"
    "$python" -m venv "$home" >>"$log_file" 2>&1 || fail "no virtual environment could be made with $python"
    # Nothing comes from the network, and each wheel is checked by its hash.
    local pip=("$home/bin/python" -m pip install -q --disable-pip-version-check --no-input -r "$requirements")
    pip+=(--no-index --find-links "$here/wheels" --require-hashes)
    timeout 600 "${pip[@]}" >>"$log_file" 2>&1 || fail "the package could not be installed: see $log_file"
    put 644 "$home/$SERVICE" <"$here/$SERVICE" || fail "the unit could not be written"
    touch "$home/.complete"
    say "installed into $home"
}

put() { # put MODE TARGET: standard input becomes the file, whole or not at all
    local beside
    mkdir -p "$(dirname "$2")" && beside=$(mktemp "$2.XXXXXX") && cat >"$beside" && chmod "$1" "$beside" || return 1
    mv -f "$beside" "$2"
}

point() { # point NAME HOME: in one step, so that a service that starts in between finds the old one or the new one
    ln -sfn "$2" "$opt/.next" && mv -T "$opt/.next" "$opt/$1" || fail "$opt/$1 cannot be set"
}

version_at() { # what `current` or `previous` points to, if it is whole
    local found
    found=$(readlink "$opt/$1" 2>/dev/null)
    [ -n "$found" ] && [ -e "$found/.complete" ] && echo "$found"
}

# `journal PYTHON-OF keep|back VERSION`: see rekindle/slurm_agent/orders/journal_copy.py.
journal() {
    local found one
    found=$(sed -n 's/^REKINDLE_STATE_DIR=//p' "$env_to" 2>/dev/null | tail -n 1)
    for one in "${found:-$state}"/agent.sqlite*; do # the folder is the agent's, who may not lead root elsewhere
        [ ! -L "$one" ] || { systemctl start "$SERVICE"; fail "$one is a link, so nothing was changed"; }
    done
    "$1/bin/python" -m rekindle.slurm_agent.orders.journal_copy "$2" "${found:-$state}/agent.sqlite" "$3/agent.sqlite" >>"$log_file" 2>&1 ||
        { systemctl start "$SERVICE"; fail "the journal of ${found:-$state} cannot be kept, so nothing was changed: see $log_file"; }
}

systemd() {
    command -v systemctl >/dev/null || fail "no systemctl: run $opt/current/bin/python -m rekindle.slurm_agent by other means"
    systemctl "$@"
}
is_active() { systemctl -q is-active "$SERVICE" 2>/dev/null; }

# Type=exec counts a start as done once the program is there: an agent that ends at once is seen by asking for a while.
has_settled() {
    local seconds
    for ((seconds = 0; seconds < ${REKINDLE_SETTLE_S:-6}; seconds++)); do
        is_active || return 1
        sleep 1
    done
    is_active
}

# The agent's own user, who may do nothing else. Without one it is root in one process, and says so (--check).
make_user() {
    [ -z "$root" ] && ! getent passwd rekindle >/dev/null && would "make the system user rekindle" || return 0
    useradd --system --user-group --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin rekindle >>"$log_file" 2>&1 &&
        mkdir -p "$opt" && touch "$opt/.made-user" || say "WARNING: there is no user rekindle: the agent is root in one process"
}

stop_service() { # it finishes the order that it is at; one that waits to be started again is not active, and stopped too
    systemd stop "$SERVICE" || fail "the service did not stop"
}

start_service() {
    # What runs is noted once it runs: a start that failed is made up for by the next run.
    local noted=$opt/.running wanted
    wanted=$({ readlink "$opt/current"; cat "$unit" "$env_to"; } | sha256sum)
    if [ "$wanted" != "$(cat "$noted" 2>/dev/null)" ]; then
        systemd daemon-reload || { say "systemctl daemon-reload failed"; return 1; }
        systemd enable "$SERVICE" >>"$log_file" 2>&1 || { say "the service could not be enabled"; return 1; }
        systemd restart "$SERVICE" && has_settled || { say "the service did not start: journalctl -u rekindle-agent"; return 1; }
        printf '%s\n' "$wanted" >"$noted"
        say "the agent was started"
    elif ! is_active; then
        systemd enable "$SERVICE" >>"$log_file" 2>&1
        systemd start "$SERVICE" && has_settled || { say "the service did not start: journalctl -u rekindle-agent"; return 1; }
        say "the agent was started again"
    else
        say "nothing to do: the agent runs as it should"
    fi
}

# Puts a version in force: its unit, its settings, its folder.
flip() { # flip HOME
    put 644 "$unit" <"$1/$SERVICE" && put 600 "$env_to" <"$1/agent.env" || fail "unit and settings cannot be written"
    point current "$1"
}

need_root() {
    [ -n "$root" ] || [ "$(id -u)" = 0 ] || refuse 1 "this needs root: sudo bash $0 $verb"
}
need_installed() {
    home=$(version_at current) || refuse 3 "no agent is installed here"
}

go_back() { # go_back FROM TO BEFORE: BEFORE, if there is one, becomes the version before
    stop_service
    journal "$1" keep "$1"
    journal "$1" back "$2"
    flip "$2"
    if [ -n "$3" ]; then point previous "$3"; else rm -f "$opt/previous"; fi
}

rollback() {
    need_installed
    local before
    before=$(version_at previous) || refuse 3 "no version before is here to go back to"
    would "stop the agent, go back from $home to $before with its settings, and start it" || return 0
    go_back "$home" "$before" "$home"
    start_service || fail "the version before does not run either"
    say "the agent is $before again; the next rollback returns to $home"
}

uninstall() {
    local left=0
    if [ ! -e "$opt" ] && [ ! -e "$unit" ] && [ -e "$root/etc/rekindle/cluster" ]; then # of every other node
        would "remove $root/etc/rekindle" || return 0
        rm -rf "$root/etc/rekindle" || fail "$root/etc/rekindle cannot be removed"
        say "no agent is installed here; the cluster's name was removed"
        return
    fi
    if ! home=$(version_at current); then
        [ -e "$opt" ] || [ -e "$unit" ] || refuse 3 "no agent is installed here"
        say "what is here is not whole: nothing can be given back by it"
        left=1
    elif [ -n "$dry" ]; then
        would "stop and disable the agent, then:"
        agent --give-back --dry-run
    else
        stop_service
        # Every way out comes by here: a stopped agent that is run again would be no removal.
        systemd disable "$SERVICE" >>"$log_file" 2>&1
        agent --give-back 2>>"$log_file" || left=1
    fi
    [ "$left" = 0 ] || [ -n "$force" ] || [ -n "$dry" ] ||
        fail "not all was given back, so nothing was removed: see docs/agent.md and $log_file, or say --force"
    would "remove $unit, $root/etc/rekindle, $opt, $state, $state-root, and what is kept of this cluster in S3 and beside slurmctld's state" ||
        return 0
    [ -z "$home" ] || agent --remove-state 2>>"$log_file" || left=2
    systemctl disable --now "$SERVICE" >>"$log_file" 2>&1
    [ ! -e "$opt/.made-user" ] || userdel rekindle >>"$log_file" 2>&1 || say "WARNING: the user rekindle is left"
    rm -rf "$unit" "$root/etc/rekindle" "$opt" "$state" "$state-root" || fail "not all files could be removed"
    systemctl daemon-reload >>"$log_file" 2>&1
    [ "$left" != 2 ] || fail "removed here; what is left elsewhere is named above, or in $log_file"
    say "removed"
}

agent() { # the agent's own command line, with its settings
    (
        set -a
        # shellcheck disable=SC1090
        . "$env_to"
        PATH=/opt/slurm/bin:/opt/slurm/sbin:$PATH REKINDLE_STATE_DIR=${REKINDLE_STATE_DIR:-$state} REKINDLE_ROOT=$root exec "$opt/current/bin/python" -m rekindle.slurm_agent "$@"
    )
}

status() {
    need_installed
    say "installed: $home, $("$home/bin/python" -m rekindle.slurm_agent --version 2>&1 | tail -n 1)"
    say "before it: $(version_at previous || echo none)"
    agent --check 2>&1
    is_active || refuse 1 "the agent does not run: journalctl -u rekindle-agent"
    say "the agent runs"
}

mark_start() { # rekindle/slurm_agent/takeover.py: the next start here ends a stop of all agents
    local found
    found=$(sed -n 's/^REKINDLE_STATE_DIR=//p' "$env_to" 2>/dev/null | tail -n 1)
    mkdir -p -m 700 "${found:-$state}" && rm -f "${found:-$state}/stopped" && (set -C && : >"${found:-$state}/stopped")
}

stop_at_once() {
    need_installed
    if ! would "stop and disable the agent, and let none on another head node act; no run is ended"; then
        [ -z "$gives" ] || agent --give-back --dry-run --within 10 2>/dev/null
        return 0
    fi
    systemd disable --now "$SERVICE" >>"$log_file" 2>&1 || fail "the service did not stop"
    is_active && fail "the service did not stop"
    say "the agent is stopped here, and stays so, until: systemctl enable --now rekindle-agent"
    agent --stop-all 2>>"$log_file" || fail "the agent is stopped here, those on other head nodes perhaps not: stop them there"
    if [ -n "$gives" ]; then
        agent --give-back --within 10 2>>"$log_file" || fail "not all was given back: see docs/agent.md"
    else
        say "what is still held by us; stop --give-back gives it back:"
        agent --give-back --dry-run --within 10 2>>"$log_file" || say "all of what is held is not known now"
    fi
}

main() {
    local cluster python='' home='' before='' older=''
    [ -z "$bad_usage" ] || refuse 2 "$bad_usage"
    [ -n "$dry" ] || need_root
    case $verb in
    rollback) rollback; return ;;
    uninstall) uninstall; return ;;
    status) status; return ;;
    stop) stop_at_once; return ;;
    upgrade) need_installed ;;
    esac
    if [ -n "$from" ]; then
        here=$opt/bundle
        mkdir -p "$here" || fail "$here cannot be made"
        timeout 300 aws s3 cp --recursive --only-show-errors "${from%/}/" "$here/" >>"$log_file" 2>&1 ||
            fail "the folder could not be fetched from $from"
    fi
    local env_file=$here/rekindle.env made_for=''
    cluster=$(fact cluster)
    [ -r "$env_file" ] && made_for=$(sed -n 's/^REKINDLE_CLUSTER=//p' "$env_file" | tail -n 1)
    if [ -n "$cluster" ] && [ -n "$made_for" ] && [ "$cluster" != "$made_for" ]; then
        say "WARNING: this is $cluster, and the folder was made for $made_for: the agent's rights may be that cluster's"
    fi
    cluster=${cluster:-$made_for}
    if [ -n "$cluster" ] && [ "$cluster" != "$(cat "$root/etc/rekindle/cluster" 2>/dev/null)" ] &&
        would "leave the name $cluster in $root/etc/rekindle/cluster"; then
        # For the monitors on all nodes, where SageMaker's own file is for root only.
        put 644 "$root/etc/rekindle/cluster" <<<"$cluster" || fail "$root/etc/rekindle/cluster cannot be written"
    fi
    find_role
    if [ "$role" != controller ]; then
        say "not the head node: only the cluster's name (${cluster:-unknown}) was left here"
        return
    fi
    [ -r "$env_file" ] || fail "there is no $env_file: make the folder with rekindle slurm-agent bundle"
    grep -q '^REKINDLE_BUCKET=.' "$env_file" || fail "$env_file: REKINDLE_BUCKET is missing"
    if ! find_python; then
        would "install python3.11 by apt or dnf" || return 0
        install_python && find_python || fail "no Python of 3.10 or newer with venv: install one and name it in REKINDLE_PYTHON"
    fi
    before=$(version_at current)
    older=$(version_at previous)
    install_package
    make_user
    if [ -z "$before" ] && [ ! -e "$allow" ] && would "leave $allow: the agent does only what that file allows"; then
        put 600 "$allow" <"$here/allow.conf" || fail "$allow cannot be written: make the folder again"
        say "the agent does what $allow allows: $(grep '^mode' "$allow")"
    fi
    if [ -n "$dry" ]; then
        [ "$before" = "$home" ] || would "put $home in force${before:+ instead of $before}"
        would "start the agent unless it runs so already" || return 0
    fi
    {
        grep -v '^REKINDLE_CLUSTER=' "$env_file"
        [ -z "$cluster" ] || printf 'REKINDLE_CLUSTER=%s\n' "$cluster"
        # What an administrator has set here besides, such as REKINDLE_PARTITIONS, stays.
        [ ! -r "$env_to" ] || awk -F= 'NR == FNR { ours[$1]; next } !($1 in ours) && $1 != "REKINDLE_CLUSTER"' "$env_file" "$env_to"
    } | put 600 "$home/agent.env" || fail "$home/agent.env cannot be written"
    if [ -n "$before" ] && [ "$before" != "$home" ]; then
        stop_service
        [ -e "$before/$SERVICE" ] || cp -p "$unit" "$before/$SERVICE" # a version that was installed without them beside it
        [ -e "$before/agent.env" ] || cp -p "$env_to" "$before/agent.env"
        journal "$home" keep "$before"
        point previous "$before"
    fi
    flip "$home"
    # An operator who installs means it to run, also after a stop; a lifecycle script may not decide that.
    [ "$strict" = 0 ] || [ -z "$verb" ] || mark_start
    put 755 "$opt/$(basename "${BASH_SOURCE[0]}")" <"${BASH_SOURCE[0]}" || fail "$opt cannot be written to"
    if ! start_service; then
        [ -n "$before" ] && [ "$before" != "$home" ] || fail "the agent is installed and does not run"
        go_back "$home" "$before" "$older"
        rm -rf "$home"
        start_service || fail "neither the new version nor the one before runs"
        fail "the new version does not run: the agent is $before as before"
    fi
    tidy
}

tidy() { # versions that are neither in force nor the one before, and Pythons that neither uses
    local one kept
    kept=" $(readlink -f "$opt/current") $(readlink -f "$opt/previous") "
    for one in "$opt"/[0-9a-f]*; do
        [ -e "$one/.complete" ] && [[ $kept != *" $(readlink -f "$one") "* ]] && rm -rf "$one"
    done
    for one in "$opt"/python-*; do
        grep -qs "^home = $one/" "$opt/current/pyvenv.cfg" "$opt/previous/pyvenv.cfg" || rm -rf "$one"
    done
    return 0
}

(main)
code=$?
if [ "$code" -ne 0 ] && [ "$strict" -eq 0 ]; then
    say "the node goes on without Rekindle's agent"
    code=0
fi
exit "$code"

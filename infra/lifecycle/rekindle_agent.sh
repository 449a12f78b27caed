#!/bin/bash
# Installs Rekindle's agent on a Slurm head node, and tells every node the cluster's name.
#
# HyperPod: put the folder that `rekindle slurm-agent install` makes beside on_create.sh, and call this at its end, on every
# node (docs/hyperpod-slurm.md). It is safe to run again, and is run again whenever HyperPod makes the node anew.
# ParallelCluster, plain Slurm: run it by hand, as root, on the head node.
#
# It never fails a node: a lifecycle script that fails takes the whole cluster's creation with it. Whatever goes wrong is
# logged, and the exit code is 0 unless --strict is given.
#
#   rekindle_agent.sh [--strict] [--controller | --not-controller] [--from s3://BUCKET/PREFIX] [--root DIR]
#     --controller       do not look whether this is a head node
#     --from             fetch the folder first (aws s3 cp), for a node to which only this file was brought
#     --root             install below another root, for tests and images
set -u

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
strict=0 root='' role='' from='' bad_usage=''
while [ $# -gt 0 ]; do
    case $1 in
    --strict) strict=1 ;;
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
mkdir -p "$root/var/log" 2>/dev/null
say() {
    printf '%s rekindle_agent: %s\n' "$(date -u +%FT%TZ)" "$*" | tee -a "$log_file" 2>/dev/null || true
}
fail() {
    say "ERROR: $*"
    exit 1
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
        (group, index)
        for group in config.get("InstanceGroups") or []
        for index, instance in enumerate(group.get("Instances") or [])
        if instance.get("CustomerIpAddress") in addresses
    ]
    if mine:
        group, index = mine[0]
        # Newer clusters say a group's part in SlurmConfig, older ones in the file beside the lifecycle scripts.
        node_type = (group.get("SlurmConfig") or {}).get("NodeType")
        named = read(os.environ["PROVISIONING"]).get("controller_group")
        is_controller = node_type == "Controller" if node_type else bool(named) and group.get("Name") == named
        known = bool(node_type) or bool(named)
        # One agent per cluster: on the first controller.
        print("controller" if is_controller and index == 0 else "other" if known else "")
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
    local candidate
    for candidate in "${REKINDLE_PYTHON:-}" python3.13 python3.12 python3.11 python3.10 python3; do
        [ -n "$candidate" ] || continue
        if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
            python=$(command -v "$candidate")
            return
        fi
    done
    return 1
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

# One environment per content of the bundle: an update makes another one, and is in force when `current` points to it.
install_package() {
    local digest home requirements=$here/requirements.txt
    [ -r "$requirements" ] || fail "there is no $requirements: make the folder with rekindle slurm-agent install"
    digest=$({ cat "$requirements"; cd "$here" && ls wheels 2>/dev/null; "$python" --version; } | sha256sum | cut -c1-16)
    home=$root/opt/rekindle/$digest
    if [ ! -e "$home/.complete" ]; then
        rm -rf "$home"
        mkdir -p "$root/opt/rekindle" || fail "$root/opt/rekindle cannot be made"
        "$python" -m venv "$home" >>"$log_file" 2>&1 || fail "no virtual environment could be made with $python"
        local pip=("$home/bin/python" -m pip install -q --disable-pip-version-check --no-input -r "$requirements")
        # With the wheels in the folder nothing comes from the network, and each is checked by its hash.
        [ -d "$here/wheels" ] && pip+=(--no-index --find-links "$here/wheels" --require-hashes)
        timeout 600 "${pip[@]}" >>"$log_file" 2>&1 || fail "the package could not be installed: see $log_file"
        touch "$home/.complete"
        say "installed into $home"
    fi
    if [ "$(readlink "$root/opt/rekindle/current")" != "$home" ]; then
        # In one step: the service that starts in between must find the old one or the new one.
        if ! { ln -sfn "$home" "$root/opt/rekindle/.next" && mv -T "$root/opt/rekindle/.next" "$root/opt/rekindle/current"; }; then
            fail "$root/opt/rekindle/current cannot be set"
        fi
    fi
}

put() { # put MODE TARGET: standard input becomes the file, whole or not at all
    local beside
    mkdir -p "$(dirname "$2")" && beside=$(mktemp "$2.XXXXXX") && cat >"$beside" && chmod "$1" "$beside" || return 1
    mv -f "$beside" "$2"
}

start_service() {
    # What runs is noted once it runs: a start that failed is made up for by the next run.
    local unit=$root/etc/systemd/system/rekindle-agent.service noted=$root/opt/rekindle/.running wanted
    command -v systemctl >/dev/null || fail "no systemctl: run $root/opt/rekindle/current/bin/python -m rekindle.agent by other means"
    wanted=$({ readlink "$root/opt/rekindle/current"; cat "$unit" "$root/etc/rekindle/agent.env"; } | sha256sum)
    if [ "$wanted" != "$(cat "$noted" 2>/dev/null)" ]; then
        systemctl daemon-reload || fail "systemctl daemon-reload failed"
        systemctl enable rekindle-agent.service >>"$log_file" 2>&1 || fail "the service could not be enabled"
        systemctl restart rekindle-agent.service || fail "the service did not start: journalctl -u rekindle-agent"
        printf '%s\n' "$wanted" >"$noted"
        say "the agent was started"
    elif ! systemctl -q is-active rekindle-agent.service; then
        systemctl start rekindle-agent.service || fail "the service did not start: journalctl -u rekindle-agent"
        say "the agent was started again"
    else
        say "nothing to do: the agent runs as it should"
    fi
}

main() {
    local cluster python=''
    [ -z "$bad_usage" ] || fail "$bad_usage"
    if [ -n "$from" ]; then
        here=$root/opt/rekindle/bundle
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
    if [ -n "$cluster" ]; then # for the monitors on all nodes, where SageMaker's own file is for root only
        put 644 "$root/etc/rekindle/cluster" <<<"$cluster" || fail "$root/etc/rekindle/cluster cannot be written"
    fi
    find_role
    if [ "$role" != controller ]; then
        say "not the head node: only the cluster's name (${cluster:-unknown}) was left here"
        return
    fi
    [ -r "$env_file" ] || fail "there is no $env_file: make the folder with rekindle slurm-agent install"
    grep -q '^REKINDLE_BUCKET=.' "$env_file" || fail "$env_file: REKINDLE_BUCKET is missing"
    find_python || { install_python && find_python; } ||
        fail "no Python of 3.10 or newer with venv: install one and name it in REKINDLE_PYTHON"
    install_package
    {
        grep -v '^REKINDLE_CLUSTER=' "$env_file"
        [ -z "$cluster" ] || printf 'REKINDLE_CLUSTER=%s\n' "$cluster"
    } | put 600 "$root/etc/rekindle/agent.env" || fail "$root/etc/rekindle/agent.env cannot be written"
    put 644 "$root/etc/systemd/system/rekindle-agent.service" <"$here/rekindle-agent.service" ||
        fail "the unit could not be written"
    start_service
}

(main)
code=$?
if [ "$code" -ne 0 ] && [ "$strict" -eq 0 ]; then
    say "the node goes on without Rekindle's agent"
    code=0
fi
exit "$code"

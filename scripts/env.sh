# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
#
#   source scripts/env.sh
#
# Activates the environment that scripts/setup.sh made: the virtual environment, ROS 2, and this
# package's overlay. From any folder, in bash; sourcing it again changes nothing.

_flashrt_env() {
    local root
    root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"

    if [ ! -f "$root/.venv/bin/activate" ] || [ ! -f "$root/install/local_setup.bash" ]; then
        echo "env.sh: nothing is set up in $root; run: bash $root/scripts/setup.sh" >&2
        return 1
    fi
    if [ -n "${ROS_DISTRO:-}" ] && [ -z "${AMENT_PREFIX_PATH:-}" ]; then
        # shellcheck disable=SC1090
        source "${FLASHRT_ROS_SETUP:-/opt/ros/$ROS_DISTRO/setup.bash}" || return 1
    fi
    # shellcheck disable=SC1091
    source "$root/.venv/bin/activate"
    if [ -z "${ROS_DISTRO:-}" ]; then
        export AMENT_PREFIX_PATH="$VIRTUAL_ENV"
        _flashrt_library_path
    fi
    # shellcheck disable=SC1091
    source "$root/install/local_setup.bash"

    # The source tree before the overlay: a Python file edited or added here needs no build.
    # flashrt_ros/__init__.py lets both halves import (flashrt_ros.msg comes from the overlay).
    case ":${PYTHONPATH:-}:" in
        ":$root:"*) ;;
        *) export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}" ;;
    esac
}

# The ROS wheels re-execute Python once at start to set LD_LIBRARY_PATH, which breaks processes
# that were started with an unusual argv. Setting it here spares them that.
_flashrt_library_path() {
    local folder
    for folder in "$VIRTUAL_ENV"/lib/python3.*/site-packages/ros_*.libs "$VIRTUAL_ENV/lib"; do
        case ":${LD_LIBRARY_PATH:-}:" in
            *":$folder:"*) ;;
            *) LD_LIBRARY_PATH="$folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" ;;
        esac
    done
    export LD_LIBRARY_PATH
    export _ROS_WHEELS_BOOTSTRAP_COMPLETE=1
}

# ROS's own setup files read unset variables, and the caller may run with `set -u`.
case $- in
    *u*)
        set +u
        _flashrt_env
        _flashrt_status=$?
        set -u
        ;;
    *)
        _flashrt_env
        _flashrt_status=$?
        ;;
esac
unset -f _flashrt_env _flashrt_library_path
# `return` clears the variable's only reader.
if [ "$_flashrt_status" -ne 0 ]; then
    unset _flashrt_status
    return 1
fi
unset _flashrt_status

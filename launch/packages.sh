# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh
# What tutti needs from Debian or Ubuntu, in one place; sourced by launch/quickstart and tests/run.
#
#   . launch/packages.sh
#   tutti_install $tutti_packages_build             # to build the library, programs and examples, and to run them
#   tutti_install $tutti_packages_test              # besides those, to run the tests
#   tutti_install_optional $tutti_packages_optional # a test that misses one of them is skipped with its reason
#
# A word is a package, or COMMAND=package where any program of that name will do.

# shellcheck disable=SC2034 # used by those who source this file
tutti_packages_build="gcc=gcc libc6-dev cmake=cmake ninja=ninja-build pkg-config=pkg-config mpirun=openmpi-bin
    libopenmpi-dev libhdf5-dev libhwloc-dev libexpat1-dev libjansson-dev libxxhash-dev libopenblas-dev"
# shellcheck disable=SC2034
tutti_packages_test="g++=g++ python3=python3 h5dump=hdf5-tools libcmocka-dev"
# shellcheck disable=SC2034
tutti_packages_optional="ip=iproute2 clang-format-14=clang-format-14 shellcheck=shellcheck python3-h5py"

# Those of the words whose program or package is not there.
tutti_missing() {
    for word in "$@"; do
        case $word in
        *=*) command -v "${word%%=*}" >/dev/null 2>&1 && continue ;;
        *) dpkg-query -W -f='${Status}' "$word" 2>/dev/null | grep -q '^install ok installed' && continue ;;
        esac
        printf '%s ' "${word##*=}"
    done
}

# Installs what is missing with apt-get, as root or through sudo, and says what it installs. Without apt-get, or
# without the rights, it says what to install by hand and fails.
tutti_install() {
    command -v dpkg-query >/dev/null 2>&1 || {
        echo "this is no Debian or Ubuntu: not checked whether these (Debian's names) are there: $*" >&2
        return 0
    }
    missing=$(tutti_missing "$@")
    [ -n "$missing" ] || return 0
    if [ "$(id -u)" = 0 ]; then
        tutti_root=""
    elif command -v sudo >/dev/null 2>&1; then
        tutti_root="sudo"
    else
        echo "missing packages, and neither root nor sudo to install them. Please run as root:" >&2
        echo "    apt-get update && apt-get install --no-install-recommends $missing" >&2
        return 1
    fi
    echo "installing with apt-get: $missing"
    tutti_apt_log=$(mktemp) || return 1
    # shellcheck disable=SC2086 # lists of words
    if $tutti_root apt-get update -qq >"$tutti_apt_log" 2>&1 &&
        $tutti_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing \
            >>"$tutti_apt_log" 2>&1; then
        rm -f "$tutti_apt_log"
        return 0
    fi
    tail -20 "$tutti_apt_log" >&2
    rm -f "$tutti_apt_log"
    echo "apt-get failed; the packages wanted were: $missing" >&2
    return 1
}

# The same, one by one, where a package that cannot be had is no error.
tutti_install_optional() {
    for optional in "$@"; do
        tutti_install "$optional" || echo "going on without ${optional##*=}"
    done
}

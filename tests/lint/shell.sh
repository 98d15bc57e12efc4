#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# shell.sh ROOT: shellcheck has nothing to say about the shell scripts. shell.sh ROOT --samples: it would notice.
command -v shellcheck >/dev/null || { echo "skipped: shellcheck is not installed" && exit 77; }
cd "$1" || exit 1
if [ "${2:-}" = --samples ]; then
    # shellcheck disable=SC2016 # the unquoted variable is the point
    printf '#!/bin/sh\nrm $1\n' | shellcheck -S info - >/dev/null && exit 1
    exit 0
fi
# Whatever begins with a #! of a shell.
find .ci launch tests examples benchmarks -type f ! -name '*.[chp]*' -exec sh -c '
    for f; do
        head -1 "$f" | grep -Eq "^#!.*[/ ](ba|da)?sh( |$)|shellcheck shell=" && printf "%s\0" "$f"
    done' sh {} + | xargs -0 shellcheck -x -S warning

#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# format.sh ROOT: the C sources are as clang-format 14 leaves them. format.sh ROOT --samples: a bad line is noticed.
tool=""
for name in clang-format-14 clang-format; do
    if command -v "$name" >/dev/null && "$name" --version | grep -q 'version 14\.'; then
        tool=$name
        break
    fi
done
[ -n "$tool" ] || { echo "skipped: clang-format 14 is not installed (other versions format differently)" && exit 77; }
cd "$1" || exit 1
if [ "${2:-}" = --samples ]; then
    printf 'int f( void ) { return 1 ; }\n' | "$tool" --dry-run -Werror --assume-filename=a.c 2>/dev/null && exit 1
    printf 'int f(void)\n{\n    return 1;\n}\n' | "$tool" --dry-run -Werror --assume-filename=a.c
    exit
fi
find runtime collectives launch examples benchmarks tests -name '*.[ch]' -type f -print0 |
    xargs -0 "$tool" --dry-run -Werror

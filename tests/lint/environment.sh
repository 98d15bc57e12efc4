#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# environment.sh TUTTI PAGE: the page is what `tutti env --markdown` prints. environment.sh --samples: a difference is noticed.
if [ "$1" = --samples ]; then
    dir=$(mktemp -d)
    trap 'rm -rf "$dir"' EXIT
    printf '#!/bin/sh\necho "$1 $2"\n' >"$dir/tutti"
    chmod +x "$dir/tutti"
    echo "env --markdown" >"$dir/page"
    sh "$0" "$dir/tutti" "$dir/page" || exit 1
    echo more >>"$dir/page"
    sh "$0" "$dir/tutti" "$dir/page" >/dev/null && exit 1
    exit 0
fi
page=$(mktemp)
trap 'rm -f "$page"' EXIT
"$1" env --markdown >"$page" || exit 1
diff -u "$2" "$page" || { echo "$2 is out of date: build/bin/tutti env --markdown > docs/environment.md" && exit 1; }

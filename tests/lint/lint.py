#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""lint.py RULE [--root DIR]: checks the sources by one rule. lint.py RULE --samples: checks the rule itself."""
import argparse
import sys

from rules import RULES, size_report
from source import read_tree


def check_samples(rule):
    """A sample of each defect must be found, for its reason; the good sample must pass."""
    wrong = []
    for tree, reason in rule.BAD:
        found = list(rule(tree))
        if not any(reason in finding for finding in found):
            wrong.append(f"not found ({reason!r}) in {tree!r}; found: {found}")
    wrong += [f"found in the good sample: {finding}" for finding in rule(rule.GOOD)]
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rule", choices=sorted(RULES))
    parser.add_argument("--root", default=".")
    parser.add_argument("--samples", action="store_true")
    args = parser.parse_args()
    rule = RULES[args.rule]
    if args.samples:
        findings = check_samples(rule)
    else:
        tree = read_tree(args.root)
        if not tree:
            sys.exit(f"lint.py: no sources under {args.root}")
        findings = sorted(set(rule(tree)))
        if args.rule == "size":
            print(size_report(tree))
    for finding in findings:
        print(finding)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())

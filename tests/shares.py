#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints, from one ctest run, why tests were skipped and where the 15 minutes of tests/run went.

A test counts for its time multiplied by the share of the parallel slots that it occupied, so that
the areas add up to about the wall clock. An area that took more than its share is marked "over".
"""
import argparse
import json
import re
import sys
import xml.etree.ElementTree as ET

SHARES = [  # area, minutes on 2 cores
    ("set-up and builds", 5.0),
    ("main", 3.0),
    ("cuda", 2.5),
    ("topology", 0.5),
    ("collectives", 1.5),
    ("parallel", 1.5),
    ("checkpoint", 1.0),
]


def describe(tests_json):
    """name -> (area, slots)"""
    areas = {name for name, _ in SHARES} | {"house"}
    known = {}
    for test in json.load(tests_json)["tests"]:
        props = {p["name"]: p["value"] for p in test.get("properties", [])}
        area = [label for label in props.get("LABELS", []) if label in areas]
        known[test["name"]] = (area[0] if area else "house", int(props.get("PROCESSORS", 1)))
    return known


def reason(case):
    """The last line that a skipped test printed."""
    lines = [line.strip() for line in (case.findtext("system-out") or "").splitlines() if line.strip()]
    lines = [line for line in lines if not re.match(r"^[-=]+$|^mpirun|^Primary job|^a non-zero", line)]
    named = [line for line in lines if re.search(r"skip", line, re.I)]
    return (named or lines or ["no reason given"])[-1]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--slots", type=int, required=True, help="of ctest, all at once")
    parser.add_argument("--builds", type=float, required=True, help="seconds before ctest")
    parser.add_argument("junit")
    parser.add_argument("tests_json")
    args = parser.parse_args()

    with open(args.tests_json) as f:
        known = describe(f)
    minutes = {name: 0.0 for name, _ in SHARES}
    minutes["set-up and builds"] = args.builds / 60
    skipped = []
    for case in ET.parse(args.junit).getroot().iter("testcase"):
        name = case.get("name")
        if case.get("status") == "notrun" or case.find("skipped") is not None:
            skipped.append((name, reason(case)))
        area, slots = known.get(name, ("house", 1))
        share = min(slots, args.slots) / args.slots
        # Lints and unit tests belong to setting up: they say that the tree is sound.
        area = "set-up and builds" if area == "house" else area
        minutes[area] += float(case.get("time", 0)) * share / 60

    for name, why in skipped:
        print(f"skipped {name}: {why}")
    if skipped:
        print()
    print("where the time went       minutes   share")
    for name, limit in SHARES:
        over = "  over" if minutes[name] > limit else ""
        print(f"{name:25} {minutes[name]:7.2f} {limit:7.1f}{over}")
    total, limit = sum(minutes.values()), sum(limit for _, limit in SHARES)
    print(f"{'total':25} {total:7.2f} {limit:7.1f}{'  over' if total > limit else ''}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

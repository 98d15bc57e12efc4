#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""areas.py CTEST BUILD: every test carries exactly one area label, so that its time is booked once, and has a time limit."""
import json
import subprocess
import sys

AREAS = {"house", "main", "cuda", "topology", "collectives", "parallel", "checkpoint"}


def check(described):
    for test in described["tests"]:
        props = {p["name"]: p["value"] for p in test.get("properties", [])}
        areas = AREAS & set(props.get("LABELS", []))
        if len(areas) != 1:
            yield f"{test['name']} has {len(areas)} area labels: {sorted(areas)}"
        if "TIMEOUT" not in props:
            yield f"{test['name']} has no TIMEOUT"
    if not described["tests"]:
        yield "no tests"


def samples():
    def one(labels, **more):
        props = [{"name": "LABELS", "value": labels}] + [{"name": k, "value": v} for k, v in more.items()]
        return {"tests": [{"name": "t", "properties": props}]}
    assert not list(check(one(["main", "long"], TIMEOUT=1)))
    assert list(check(one(["main", "house"], TIMEOUT=1)))
    assert list(check(one(["long"], TIMEOUT=1)))
    assert list(check(one(["main"])))
    assert list(check({"tests": [{"name": "t"}]}))
    assert list(check({"tests": []}))


def main():
    if sys.argv[1:] == ["--samples"]:
        samples()
        return 0
    out = subprocess.run([sys.argv[1], "--test-dir", sys.argv[2], "--show-only=json-v1"], check=True,
                         capture_output=True, text=True).stdout
    findings = list(check(json.loads(out)))
    print("\n".join(findings))
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""tree.py DIRECTORY: a recorded machine (a directory with sys/ in it) as the lines that tree.c reads, a seed for fuzzing."""
import os
import sys

FACTS = ("class", "vendor", "device", "numa_node", "local_cpus", "max_link_speed", "max_link_width", "current_link_speed",
         "current_link_width", "cpulist", "speed", "operstate", "node_guid", "state", "rate", "link_layer", "numa_status", "cpuinfo")
BELOW = ("sys/bus/pci/devices", "sys/class/net", "sys/class/infiniband", "sys/devices/pci", "sys/devices/system/node",
         "proc/driver/nvidia", "proc/cpuinfo")
BYTES_MAX = 60000


def lines(top):
    for folder, folders, files in os.walk(top):
        for name in sorted(folders + files):
            path = os.path.join(folder, name)
            below = os.path.relpath(path, top)
            if not below.startswith(BELOW):
                continue
            if os.path.islink(path):
                if name == "device" or below.startswith("sys/bus"):
                    yield f"{below}\t-> {os.readlink(path)}"
            elif name in files and name in FACTS:
                with open(path, errors="replace", encoding="utf-8") as file:
                    for line in file.read().splitlines()[:30]:
                        yield f"{below}\t{line}"


def main():
    used = 0
    if len(sys.argv) != 2 or not os.path.isdir(os.path.join(sys.argv[1], "sys")):
        print("usage: tree.py DIRECTORY, which has sys/ in it", file=sys.stderr)
        sys.exit(2)
    for line in lines(sys.argv[1]):
        used += len(line) + 1
        if used > BYTES_MAX:
            break
        print(line)


if __name__ == "__main__":
    main()

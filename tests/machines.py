# SPDX-License-Identifier: Apache-2.0
"""Trees of /proc and /sys as machines have them, and what a reading of each must tell."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from portcall.bench import Reading

LAPTOP = {
    "proc/stat": "cpu  1 2 3 4 5 6 7 250 0 0\ncpu0 1 2 3 4 5 6 7 250 0 0\n",
    "proc/loadavg": "0.45 0.30 0.20 3/512 4711\n",
    "proc/vmstat": "nr_free_pages 1\npswpin 17\npswpout 3\n",
    "proc/self/cgroup": "0::/user.slice\n",
    "proc/self/status": "Name:\tx\nVmHWM:\t   2048 kB\nVmRSS:\t   1024 kB\n",
    "proc/thread-self/schedstat": "5000000 70000 12\n",
    "sys/fs/cgroup/user.slice/cpu.stat": "usage_usec 5\nthrottled_usec 12\n",
    "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "powersave\n",
    "sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq": "2400000\n",
    "sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq": "3600000\n",
    "sys/devices/system/cpu/cpu0/thermal_throttle/core_throttle_count": "3\n",
    "sys/devices/system/cpu/cpu0/thermal_throttle/package_throttle_count": "4\n",
    "sys/class/thermal/thermal_zone0/temp": "54500\n",
    "sys/class/thermal/thermal_zone0/trip_point_0_type": "passive\n",
    "sys/class/thermal/thermal_zone0/trip_point_0_temp": "90000\n",
    "sys/class/thermal/thermal_zone0/trip_point_1_type": "critical\n",
    "sys/class/thermal/thermal_zone0/trip_point_1_temp": "105000\n",
    "sys/class/thermal/thermal_zone1/temp": "61000\n",
    "sys/class/thermal/cooling_device0/cur_state": "2\n",
    "sys/class/powercap/intel-rapl:1/name": "package-1\n",
    "sys/class/powercap/intel-rapl:1/energy_uj": "9000000\n",
    "sys/class/powercap/intel-rapl:0/name": "package-0\n",
    "sys/class/powercap/intel-rapl:0/energy_uj": "7\n",
    "sys/class/powercap/intel-rapl:0/max_energy_range_uj": "262143328850\n",
    "sys/class/powercap/intel-rapl:0:0/name": "core\n",
    "sys/class/powercap/intel-rapl:0:0/energy_uj": "5\n",
    "sys/class/powercap/intel-rapl:2/name": "psys\n",  # has the packages in it
    "sys/class/powercap/intel-rapl:2/energy_uj": "100\n",
    "sys/class/hwmon/hwmon0/power1_input": "5000000\n",
}
AMD = {
    "sys/class/hwmon/hwmon3/name": "amd_energy\n",
    "sys/class/hwmon/hwmon3/energy1_input": "7\n",
    "sys/class/hwmon/hwmon3/energy1_label": "Ecore000\n",
    "sys/class/hwmon/hwmon3/energy2_input": "9\n",
    "sys/class/hwmon/hwmon3/energy2_label": "Esocket0\n",
}
PI = {
    "proc/loadavg": "1.00 1.00 1.00 1/90 5\n",
    "proc/self/cgroup": "4:cpu,cpuacct:/board\n0::/\n",
    "sys/fs/cgroup/cpu/board/cpu.stat": "nr_periods 3\nthrottled_time 99\n",
    "sys/class/thermal/thermal_zone0/temp": "48312\n",
    "sys/class/hwmon/hwmon1/in0_lcrit_alarm": "1\n",
    "sys/class/hwmon/hwmon2/name": "ina226\n",
    "sys/class/hwmon/hwmon2/power1_input": "2000000\n",
    "sys/class/hwmon/hwmon2/power2_input": "x\n",
}
TREES: dict[str, tuple[dict[str, str], dict[str, Any]]] = {
    "laptop": (
        LAPTOP,
        {
            "stolen_ns": 2_500_000_000, "load1": 0.45, "running": 3, "quota_ns": 12_000, "swap_in": 17,
            "governor": ["powersave"], "clock_hz": [2_400_000_000], "clock_max_hz": 3_600_000_000, "throttles": 7,
            "temperature_c": 61.0, "critical_c": 105.0, "cooling": 2, "waited_ns": 70_000,
            "rss_bytes": 1 << 20, "peak_bytes": 2 << 20, "energy_from": ["package-0", "package-1"],
            "energy_uj": [7, 9_000_000], "energy_range_uj": [262_143_328_850, 0],
        },
    ),
    "pi": (PI, {"load1": 1.0, "running": 1, "quota_ns": 99, "temperature_c": 48.312, "undervoltage": 1,
                "energy_from": ["ina226"], "power_uw": [2_000_000]}),
    "amd": (AMD, {"energy_from": ["amd_energy Esocket0"], "energy_uj": [9], "energy_range_uj": [0]}),
    "nothing": ({}, {}),
    "damaged": (
        {"proc/stat": "cpu ", "proc/loadavg": "x", "proc/self/cgroup": ":::\n0:", "proc/self/status": "VmRSS:",
         "proc/thread-self/schedstat": "", "sys/class/thermal/thermal_zone0/temp": "\"\\\n",
         "sys/class/powercap/intel-rapl:0/name": "package-0\n", "sys/class/powercap/intel-rapl:0/energy_uj": "-1\n",
         "sys/class/hwmon/hwmon0/power1_input": "",
         "sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq": "<unknown>\n"},
        {},
    ),
}  # fmt: skip
OF_THE_CORE = {
    "cpus",
    "cpus_allowed",
    "memory_bytes",
    "clock_step_ns",
    "probe_ns",
    "involuntary",
    "major_faults",
    "process_ns",
    "on_cpu_ns",
    "time_ns",
}


def plant(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    return folder


def check_tree(text: str, expected: dict[str, Any]) -> None:
    told = json.loads(text)
    assert {name: value for name, value in told.items() if name not in OF_THE_CORE} == expected
    assert told.keys() >= OF_THE_CORE
    assert all(told[name] > 0 for name in ("cpus", "clock_step_ns", "probe_ns", "time_ns", "process_ns"))
    Reading.from_json(text)

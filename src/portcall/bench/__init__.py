# SPDX-License-Identifier: Apache-2.0
"""Measure functions, and report how far the numbers can be trusted.

``BenchmarkResult`` holds what a time evaluator measured; ``check_conditions`` names what may have spoiled it.
Times are seconds and sizes are bytes everywhere; text with units is made and read at the edges only.
"""

from portcall.bench._conditions import Finding as Finding
from portcall.bench._conditions import check_conditions as check_conditions
from portcall.bench._conditions import check_machine as check_machine
from portcall.bench._result import BenchmarkResult as BenchmarkResult
from portcall.bench._units import format_duration as format_duration
from portcall.bench._units import format_size as format_size
from portcall.bench._units import parse_duration as parse_duration
from portcall.bench._units import parse_size as parse_size

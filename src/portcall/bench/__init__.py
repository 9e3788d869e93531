# SPDX-License-Identifier: Apache-2.0
"""Measure functions, and say how far the numbers can be trusted.

``measure`` times something by windows and judges the figure; ``compare`` says which of two is faster;
``BenchmarkResult`` holds what a time evaluator measured.
Times are seconds and sizes are bytes everywhere; text with units is made and read at the edges only.
"""

from portcall.bench._baseline import Baseline as Baseline
from portcall.bench._baseline import baseline as baseline
from portcall.bench._baseline import check_many as check_many
from portcall.bench._baseline import clock_then as clock_then
from portcall.bench._chart import Chart as Chart
from portcall.bench._compare import compare as compare
from portcall.bench._comparison import Comparison as Comparison
from portcall.bench._conditions import Finding as Finding
from portcall.bench._conditions import Interval as Interval
from portcall.bench._conditions import Reading as Reading
from portcall.bench._conditions import check_machine as check_machine
from portcall.bench._conditions import reader as reader
from portcall.bench._cooling import Cooled as Cooled
from portcall.bench._cooling import cool as cool
from portcall.bench._counts import Counts as Counts
from portcall.bench._latency import Latency as Latency
from portcall.bench._latency import Percentile as Percentile
from portcall.bench._latency import latency as latency
from portcall.bench._measure import Measurement as Measurement
from portcall.bench._measure import measure as measure
from portcall.bench._report import report as report
from portcall.bench._result import BenchmarkResult as BenchmarkResult
from portcall.bench._stored import headline_of as headline_of
from portcall.bench._stored import is_result as is_result
from portcall.bench._stored import read_results as read_results
from portcall.bench._stored import title_of as title_of
from portcall.bench._sustained import Sustained as Sustained
from portcall.bench._sustained import sustain as sustain
from portcall.bench._units import format_duration as format_duration
from portcall.bench._units import format_size as format_size
from portcall.bench._units import parse_duration as parse_duration
from portcall.bench._units import parse_size as parse_size
from portcall.bench._verdict import Verdict as Verdict
from portcall.bench._verdict import judge as judge

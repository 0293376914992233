"""Traces: the activities of every rank with their times, saved for Perfetto and summarized in a table."""

from paceline.trace.spans import COMPUTING, SPAN, Kind, Recorder, Spans
from paceline.trace.summary import RankSummary, Summary
from paceline.trace.trace import Trace
from paceline.trace.waits import Straggler

__all__ = ["COMPUTING", "SPAN", "Kind", "RankSummary", "Recorder", "Spans", "Straggler", "Summary", "Trace"]

"""What every rank did and when: recorded by the worlds, saved for Perfetto, summed up in a table."""

from paceline.trace.spans import COMPUTING, SPAN, Kind, Recorder, Spans
from paceline.trace.summary import RankSummary, Summary
from paceline.trace.trace import Trace
from paceline.trace.waits import Straggler

__all__ = ["COMPUTING", "SPAN", "Kind", "RankSummary", "Recorder", "Spans", "Straggler", "Summary", "Trace"]

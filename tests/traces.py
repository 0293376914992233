"""Spans written by hand, for tests of code that reads spans."""

import numpy as np

from paceline.trace import SPAN, Kind, Spans


def span(kind, start_s, end_s, peer=-1, nbytes=0, step=0, message=-1):
    return (int(kind), start_s, end_s, peer, nbytes, step, message)


def compute(start_s, end_s):
    return span(Kind.COMPUTE, start_s, end_s)


def wait(start_s, end_s, peer=-1, message=-1):
    return span(Kind.WAIT, start_s, end_s, peer, message=message)


def send(start_s, end_s, peer, nbytes=8, message=-1):
    return span(Kind.SEND, start_s, end_s, peer, nbytes, message=message)


def receive(start_s, end_s, peer, nbytes=8, message=-1):
    return span(Kind.RECEIVE, start_s, end_s, peer, nbytes, message=message)


def received(asked_s, found_s, end_s, peer, nbytes=8, message=-1):
    """A message that the rank waited for."""
    return [wait(asked_s, found_s, peer, message), receive(found_s, end_s, peer, nbytes, message)]


def ranks(*spans, roles=None):
    """The spans of rank 0, of rank 1, …"""
    roles = roles or ["worker"] * len(spans)
    return [Spans(np.array(each, dtype=SPAN), rank, roles[rank]) for rank, each in enumerate(spans)]

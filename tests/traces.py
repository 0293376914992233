"""Spans written by hand, for tests of what reads them."""

import numpy as np

from paceline.trace import SPAN, Kind, Spans


def span(kind, start_s, end_s, peer=-1, nbytes=0, step=0):
    return (int(kind), start_s, end_s, peer, nbytes, step)


def compute(start_s, end_s):
    return span(Kind.COMPUTE, start_s, end_s)


def wait(start_s, end_s, peer=-1):
    return span(Kind.WAIT, start_s, end_s, peer)


def send(start_s, end_s, peer, nbytes=8):
    return span(Kind.SEND, start_s, end_s, peer, nbytes)


def receive(start_s, end_s, peer, nbytes=8):
    return span(Kind.RECEIVE, start_s, end_s, peer, nbytes)


def ranks(*spans, roles=None):
    """The spans of rank 0, of rank 1, …"""
    roles = roles or ["worker"] * len(spans)
    return [Spans(np.array(each, dtype=SPAN), rank, roles[rank]) for rank, each in enumerate(spans)]

"""Spans and byte counts of the messages of a rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.links.receiving import RecvOperation
from paceline.links.sending import SendOperation
from paceline.trace import Kind
from paceline.trace.spans import message_id

if TYPE_CHECKING:
    from paceline.clusters.process.context import ProcessContext

_NEGLIGIBLE_S = 2e-6  # shorter waits are not recorded


class MessageSpans:
    """Records each message that has been sent or received."""

    def __init__(self, ctx: ProcessContext) -> None:
        self._ctx = ctx

    def note_sent(self, operation: SendOperation) -> None:
        ctx = self._ctx
        ctx.outcome.bytes_sent += operation.nbytes
        ctx.outcome.messages_sent += 1
        start_s = operation.began_s - ctx.start_s
        end_s = min(operation.ended_s - ctx.start_s, ctx.now())
        message = message_id(ctx.rank, operation.number)
        ctx.span(Kind.SEND, start_s, end_s, operation.to, operation.nbytes, message)

    def note_received(self, operation: RecvOperation) -> None:
        ctx, header, source = self._ctx, operation.header, operation.source
        assert header is not None
        message = message_id(source, header.number)
        began_s, found_s = operation.began_s - ctx.start_s, operation.found_s - ctx.start_s
        if found_s - began_s > _NEGLIGIBLE_S:
            ctx.span(Kind.WAIT, began_s, found_s, source, message=message)
        end_s = min(operation.ended_s - ctx.start_s, ctx.now())
        ctx.span(Kind.RECEIVE, found_s, end_s, source, header.nbytes, message)

"""What is kept of a run while it goes on, so that it can go on after a stop: docs/checkpoints.md has the format.

driver        found = Store(folder).newest()                      what to go on from, verified
              store = Store(folder, keep=2); store.begin(step)    and store.end() when all ranks have ended
each rank     store.check_shared()                                the driver's store, sent to it
              writer = BackgroundWriter(store, since=step)
              writer.submit(step, shard)                          blocks for a copy in memory
the reporter  writer.submit(step, shard, lambda: store.commit(step, ranks, facts, deadline_s=…))
each rank     writer.finish(deadline_s)                           before it ends
"""

from paceline.checkpoints.background import BackgroundWriter
from paceline.checkpoints.checkpoint import FORMAT, Checkpoint
from paceline.checkpoints.shard import Shard
from paceline.checkpoints.store import Store

__all__ = ["FORMAT", "BackgroundWriter", "Checkpoint", "Shard", "Store"]

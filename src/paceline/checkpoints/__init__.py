"""Checkpoints: the state of a run on disk, so that the run can be resumed. docs/checkpoints.md has the format.

driver        store = Store(folder, keep=2); store.lock()         refuses a folder that another run uses
              found = store.newest()                              the checkpoint to resume from, verified
              store.begin(step)                                   and end(), unlock() when all ranks have ended
each rank     store.check_shared()                                on the driver's store, which was sent to it
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

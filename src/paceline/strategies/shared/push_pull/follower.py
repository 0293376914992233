"""Any other server: it follows the decisions of the first one, on its own shard."""

from __future__ import annotations

from paceline.errors import PeerLost
from paceline.strategies.shared.push_pull.order import Order
from paceline.strategies.shared.push_pull.policy import ORDER, SHARD
from paceline.strategies.shared.push_pull.push import Push
from paceline.strategies.shared.push_pull.server import Server


class Follower(Server):
    """Any other server: applies the decisions of the first server to its own shard."""

    async def run(self) -> None:
        kept: dict[tuple[int, int], Push] = {}
        while True:
            message = await self.net.recv(self.servers[0], tag=ORDER)
            order = Order.unpack(message.tensor)
            if order.keys:
                await self.update([await self._find(n, key, kept) for n, key in enumerate(order.keys)])
            if self.policy.cancels:
                for key in [key for key, push in kept.items() if push.version < self.version]:
                    self.discard(kept.pop(key))
            self.hand_out(order.recipients, order.version, ends=order.ends)
            if order.fetch:
                await self.net.send(self.servers[0], self.model.parameters[self.shard], tag=SHARD)
            if order.ends:
                await self.wait_for_farewells(order.recipients)
                return

    async def _find(self, count: int, key: tuple[int, int], kept: dict[tuple[int, int], Push]) -> Push:
        while key not in kept:
            try:
                push = self.read(await self.next_message(count))
            except PeerLost as loss:
                if loss.rank == key[0]:
                    raise  # the others have this gradient in their shards already
                continue
            if push is not None:
                kept[push.key] = push
        return kept.pop(key)

"""Memory that a loop over blocks takes again and again."""

from math import prod

from torch import Tensor


class Room:
    """Memory for a chunk, by name; the next chunk takes it again, since fresh memory costs more than using it."""

    def __init__(self, like: Tensor) -> None:
        self.like = like
        self.whole: dict[str, Tensor] = {}
        self.parts: dict[tuple[str, tuple[int, ...]], Tensor] = {}

    def __call__(self, name: str, *shape: int) -> Tensor:
        part = self.parts.get((name, shape))
        if part is None:
            numbers = prod(shape)
            if name not in self.whole or self.whole[name].numel() < numbers:
                self.whole[name] = self.like.new_empty(numbers)
            part = self.parts[name, shape] = self.whole[name][:numbers].view(shape)
        return part

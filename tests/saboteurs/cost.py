"""Law 7: operations and memory grow as the card says."""

from saboteurs import Saboteur

SABOTEURS = [
    Saboteur(
        mechanism="local",
        old="ctx.save_for_backward(q, k, v, keep, y)",
        new="ctx.save_for_backward(q, k, v, keep, y); ctx.sees = q.new_empty(q.shape[2], k.shape[2], dtype=torch.bool)",
        mimics="quadratic memory: an N x M mask saved for the backward pass",
    ),
    Saboteur(
        mechanism="local",
        old="reach = slice(max(0, start - window + 1) // 16 * 16, stop if causal else min(M, stop + window - 1))",
        new="reach = slice(0, M)",
        mimics="quadratic time: every block looks at every key and masks most of them, the most frequent complaint",
    ),
    Saboteur(
        mechanism="softmax",
        old="time=2,",
        new="time=1,",
        mimics="a card that claims more: linear time",
    ),
    Saboteur(
        mechanism="lambda_layer:local",
        old="high, wide = HIGH if self.up else 1, min(max(self.left + 1, 4 if self.up else 8), columns)",
        new="high, wide = HIGH if self.up else 1, columns",
        mimics="a neighbourhood computed as the whole with zeros",
    ),
]
